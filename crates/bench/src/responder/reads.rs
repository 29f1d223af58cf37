//! A read of a device for every key: what no server that answers from a device can do without.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::task::Waker;

use larder_disk::{Device, Looks, ReadQueue};
use larder_server::net::ConnectionId;

use crate::workload::random::Random;

/// Reads begin at multiples of this, bytes.
const BLOCK: u64 = 4096;

/// Reads on their way for connections.
#[derive(Debug)]
pub(super) struct Reads {
    queue: Box<dyn ReadQueue>,
    waker: Waker,
    /// Blocks of the device at which a read may begin.
    blocks: u64,
    len: usize,
    /// All that are on their way.
    started: usize,
    looks: Looks,
    /// How many reads a connection waits for; those that wait for none are not there.
    pending: HashMap<u64, usize>,
    random: Random,
    failed: bool,
}

impl Reads {
    /// Reads of `len` bytes each. `event` becomes readable when one ends; `waker` does the same to it.
    pub(super) fn new(
        device: &dyn Device,
        len: usize,
        event: BorrowedFd<'_>,
        waker: Waker,
    ) -> io::Result<Reads> {
        let blocks = device.size().saturating_sub(len as u64) / BLOCK;
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
            looks: Looks::default(),
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

    /// Hands new reads to the device and takes those that have ended.
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
        self.looks.ended(ended);
        self.queue.submit();
    }

    /// Whether the loop should look for reads that end instead of blocking.
    pub(super) fn polls(&mut self) -> bool {
        self.looks.again(self.started)
    }

    /// Hands new reads to the device before the loop blocks. What ended after this turn took what had may have
    /// made the event readable before the loop cleared it: then no other wake-up would come.
    pub(super) fn sleep(&mut self) {
        self.queue.submit();
        if self.queue.has_ended() {
            self.waker.wake_by_ref();
        }
    }

    /// Whether reads of the connection are on their way.
    pub(super) fn awaits(&self, id: ConnectionId) -> bool {
        self.pending.contains_key(&id.get())
    }

    /// Whether the device could not be read.
    pub(super) fn failed(&self) -> bool {
        self.failed
    }
}
