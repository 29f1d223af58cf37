//! One device read for every key: the minimum work of a server that answers from a device.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::task::Waker;

use larder_disk::{Device, PollBudget, ReadQueue};
use larder_server::net::ConnectionId;

use crate::workload::random::Random;

/// Alignment of reads, in bytes.
const BLOCK: u64 = 4096;

/// The device reads that connections wait for.
#[derive(Debug)]
pub(super) struct Reads {
    queue: Box<dyn ReadQueue>,
    waker: Waker,
    /// Number of device blocks at which a read may begin without going past the end of the device.
    blocks: u64,
    len: usize,
    /// Number of reads in flight.
    started: usize,
    poll_budget: PollBudget,
    /// Number of reads that each connection waits for. A connection without reads has no entry.
    pending: HashMap<u64, usize>,
    random: Random,
    pub(super) failed: bool,
}

impl Reads {
    /// Creates a queue of reads of `len` bytes each. The queue makes `event` readable when a read
    /// has ended. `waker` must make `event` readable too: [`Reads::sleep`] uses it.
    pub(super) fn new(
        device: &dyn Device,
        len: usize,
        event: BorrowedFd<'_>,
        waker: Waker,
    ) -> io::Result<Reads> {
        let blocks = first_blocks(device.size(), len);
        if blocks == 0 {
            return Err(io::Error::other("the device is smaller than one read"));
        }
        let queue = device.read_queue(event)?;
        Ok(Reads {
            queue,
            waker,
            blocks,
            len,
            started: 0,
            poll_budget: PollBudget::default(),
            pending: HashMap::new(),
            random: Random::new(1),
            failed: false,
        })
    }

    /// Begins `reads` reads for a connection that waits for none.
    pub(super) fn begin(&mut self, id: ConnectionId, reads: usize) {
        for _ in 0..reads {
            let block = self.random.below(self.blocks);
            self.failed |= self.queue.push(id.get(), block * BLOCK, self.len).is_err();
        }
        self.started += reads;
        if reads > 0 {
            self.pending.insert(id.get(), reads);
        }
    }

    /// Submits new reads to the device and collects those that have ended.
    pub(super) fn turn(&mut self) {
        let (pending, failed) = (&mut self.pending, &mut self.failed);
        let mut ended = 0;
        self.queue.ended(&mut |id, read| {
            ended += 1;
            *failed |= read.is_err();
            if let Some(left) = pending.get_mut(&id) {
                *left -= 1;
                if *left == 0 {
                    pending.remove(&id);
                }
            }
        });
        self.started -= ended;
        self.poll_budget.ended(ended);
        self.queue.submit();
    }

    /// Returns true if the loop should poll for ended reads instead of blocking.
    pub(super) fn polls(&mut self) -> bool {
        self.poll_budget.again(self.started)
    }

    /// Submits new reads to the device, before the loop blocks. A read may have ended after
    /// [`turn`] but before the loop cleared the event. The event will not become readable again for
    /// such a read, so this function wakes the loop.
    ///
    /// [`turn`]: Reads::turn
    pub(super) fn sleep(&mut self) {
        self.queue.submit();
        if self.queue.has_ended() {
            self.waker.wake_by_ref();
        }
    }

    /// Returns true if the connection has reads in flight.
    pub(super) fn awaits(&self, id: ConnectionId) -> bool {
        self.pending.contains_key(&id.get())
    }
}

/// Returns the number of blocks at which a read of `len` bytes may begin on a device of `size`
/// bytes.
fn first_blocks(size: u64, len: usize) -> u64 {
    size.checked_sub(len as u64).map_or(0, |last| last / BLOCK + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_begin_at_every_block_that_leaves_room_for_them() {
        let blocks = |len| [4095, 4096, 8191, 8192].map(|size| first_blocks(size, len));
        assert_eq!(blocks(3), [1, 1, 2, 2]);
        assert_eq!(blocks(4096), [0, 1, 1, 2]);
        assert_eq!(blocks(5000), [0, 0, 1, 1]);
    }
}
