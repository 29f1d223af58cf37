//! Tests that a joined device behaves like a single device, except that a sync skips a part that
//! was not written to since its last successful sync.

use super::*;
use crate::{Failure, Fault, Operation, Random, SimDevice};
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

const BORDER: u64 = 5 * 512;
const START: u64 = 3 * 512;
const PATIENCE: Duration = Duration::from_secs(60);

struct World {
    first: Arc<SimDevice>,
    second: Arc<SimDevice>,
    joined: Joined,
}

fn joined(first: SimDevice, second: SimDevice) -> World {
    let (first, second) = (Arc::new(first), Arc::new(second));
    let joined = Joined::new(Arc::clone(&first) as _, BORDER, Arc::clone(&second) as _, START);
    World { first, second, joined }
}

fn world() -> World {
    joined(SimDevice::new(4096, 1), SimDevice::new(4096, 2))
}

fn all(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![0; device.size() as usize];
    device.read_at(0, &mut bytes).expect("read");
    bytes
}

/// After any calls, the joined device reads like a single one. Synced bytes survive a power loss
/// and later syncs that fail.
#[test]
fn a_joined_device_behaves_like_a_single_one() {
    let mut failed = 0;
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut world = world();
        let size = world.joined.size();
        assert_eq!(size, BORDER + 4096 - START);
        let mut plain = vec![0; size as usize];
        // The durable value of each byte, where it is known.
        let mut durable: Vec<Option<u8>> = vec![Some(0); size as usize];
        for step in 0..60 {
            // Returns all bytes, after un-synced ones may have been lost.
            let survivors = |world: &World, durable: &[Option<u8>]| {
                let found = all(&world.joined);
                for (at, (found, kept)) in found.iter().zip(durable).enumerate() {
                    let is_right = kept.is_none_or(|kept| kept == *found);
                    assert!(is_right, "seed {seed}, step {step}: {at}");
                }
                found
            };
            let offset = random.below(size);
            let length = random.below(size - offset + 1) as usize;
            let range = offset as usize..offset as usize + length;
            match random.below(9) {
                0..4 => {
                    let bytes = vec![step as u8 + 1; length];
                    world.joined.write_at(offset, &bytes).expect("write");
                    plain[range.clone()].copy_from_slice(&bytes);
                    durable[range].fill(None);
                }
                4 => {
                    let mut bytes = vec![0; length];
                    world.joined.read_at(offset, &mut bytes).expect("read");
                    assert_eq!(bytes, plain[range], "seed {seed}, step {step}");
                }
                5..7 => {
                    world.joined.sync().expect("sync");
                    durable = plain.iter().copied().map(Some).collect();
                }
                7 => {
                    let device = [&world.first, &world.second][random.below(2) as usize];
                    let next = device.counts().syncs + 1;
                    device.plan(Fault::once(Operation::Sync, next, Failure::Io));
                    let synced = world.joined.sync();
                    device.mend();
                    if synced.is_ok() {
                        // The sync skipped the device.
                        assert_eq!(all(&world.joined), plain, "seed {seed}, step {step}");
                        durable = plain.iter().copied().map(Some).collect();
                    } else {
                        failed += 1;
                        plain = survivors(&world, &durable);
                    }
                }
                _ => {
                    let crash = |device: &SimDevice| device.crash(seed + step);
                    world = joined(crash(&world.first), crash(&world.second));
                    plain = survivors(&world, &durable);
                    durable = plain.iter().copied().map(Some).collect();
                }
            }
        }
    }
    assert!(failed > 100, "{failed}");
}

#[test]
fn bytes_outside_the_joined_ranges_are_not_touched() {
    let world = world();
    world.joined.write_at(0, &vec![7; world.joined.size() as usize]).expect("write");
    let (first, second) = (all(&*world.first), all(&*world.second));
    assert!(first[..BORDER as usize].iter().all(|&byte| byte == 7));
    assert!(first[BORDER as usize..].iter().all(|&byte| byte == 0));
    assert!(second[..START as usize].iter().all(|&byte| byte == 0));
    assert!(second[START as usize..].iter().all(|&byte| byte == 7));
    let outside = world.joined.write_at(world.joined.size() - 1, &[1, 1]).expect_err("outside");
    assert_eq!(outside.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(all(&world.joined), vec![7; world.joined.size() as usize]);
}

impl World {
    fn syncs(&self) -> [u64; 2] {
        [self.first.counts().syncs, self.second.counts().syncs]
    }
}

#[test]
fn a_sync_skips_parts_that_were_not_written_to() {
    let world = world();
    world.joined.sync().expect("sync");
    assert_eq!(world.syncs(), [1, 1], "earlier writes are unknown, so both parts are synced");
    world.joined.sync().expect("sync");
    assert_eq!(world.syncs(), [1, 1]);
    world.joined.write_at(0, b"first").expect("write");
    world.joined.sync().expect("sync");
    assert_eq!(world.syncs(), [2, 1]);
    world.joined.write_at(BORDER, b"second").expect("write");
    world.joined.sync().expect("sync");
    assert_eq!(world.syncs(), [2, 2]);
    world.joined.write_at(BORDER - 1, b"both").expect("write");
    world.joined.sync().expect("sync");
    assert_eq!(world.syncs(), [3, 3]);
}

#[test]
fn a_part_is_synced_again_after_a_failed_sync_or_write() {
    for broken in [0, 1] {
        let world = world();
        world.joined.sync().expect("sync");
        let device = [&world.first, &world.second][broken];
        device.plan(Fault::once(Operation::Sync, 2, Failure::Io));
        world.joined.write_at(BORDER - 1, b"both").expect("write");
        assert!(world.joined.sync().is_err());
        world.joined.sync().expect("sync");
        world.joined.sync().expect("sync");
        assert_eq!(device.counts().syncs, 3);
        device.plan(Fault::once(Operation::Write, 2, Failure::Io));
        assert!(world.joined.write_at(BORDER - 1, b"both").is_err());
        world.joined.sync().expect("sync");
        assert_eq!(device.counts().syncs, 4, "a part of the write may be there");
    }
}

/// A running sync does not cover a write that returns during the sync. So the next sync must not be
/// skipped.
#[test]
fn a_write_during_a_sync_is_covered_by_the_next() {
    let world = world();
    world.joined.write_at(0, b"before").expect("write");
    world.first.hold(Operation::Sync);
    thread::scope(|scope| {
        let sync = scope.spawn(|| world.joined.sync());
        assert!(world.first.wait_until_held(PATIENCE));
        world.joined.write_at(0, b"during").expect("write");
        world.first.release();
        sync.join().expect("thread").expect("sync");
    });
    world.joined.sync().expect("sync");
    for seed in 0..50 {
        let mut found = [0; 6];
        world.first.crash(seed).read_at(0, &mut found).expect("read");
        assert_eq!(&found, b"during");
    }
}

/// A device with a queue whose reads end as soon as they are submitted.
#[derive(Debug)]
struct Queued(Arc<SimDevice>);

#[derive(Debug)]
struct Reads {
    device: Arc<SimDevice>,
    noted: VecDeque<(u64, u64, usize)>,
    ended: VecDeque<(u64, ReadBuffer)>,
}

impl Device for Queued {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn read_queue(&self, _event: BorrowedFd<'_>) -> io::Result<Box<dyn ReadQueue>> {
        let device = Arc::clone(&self.0);
        Ok(Box::new(Reads { device, noted: VecDeque::new(), ended: VecDeque::new() }))
    }
}

impl ReadQueue for Reads {
    fn push(&mut self, token: u64, offset: u64, len: usize) -> io::Result<()> {
        check_range(self.device.size(), offset, len)?;
        self.noted.push_back((token, offset, len));
        Ok(())
    }

    fn submit(&mut self) {
        for (token, offset, len) in self.noted.drain(..) {
            let mut buffer = ReadBuffer::new(offset, len, 512);
            self.device.read_at(offset, buffer.bytes_mut()).expect("read");
            self.ended.push_back((token, buffer));
        }
    }

    fn has_ended(&mut self) -> bool {
        !self.ended.is_empty()
    }

    fn ended(&mut self, each: &mut dyn FnMut(u64, io::Result<ReadBuffer>)) {
        self.ended.drain(..).for_each(|(token, buffer)| each(token, Ok(buffer)));
    }
}

#[test]
fn a_queued_read_goes_to_the_device_that_holds_it() {
    let world = world();
    let bytes: Vec<u8> = (0..world.joined.size()).map(|at| (at % 251) as u8).collect();
    world.joined.write_at(0, &bytes).expect("write");
    let queued = |device: &Arc<SimDevice>| Arc::new(Queued(Arc::clone(device))) as Arc<dyn Device>;
    let joined = Joined::new(queued(&world.first), BORDER, queued(&world.second), START);
    let event = io::stderr();
    let mut queue = joined.read_queue(event.as_fd()).expect("queue");
    let reads = [(0, 100), (BORDER - 10, 10), (BORDER, 20), (joined.size() - 5, 5)];
    for (token, (offset, len)) in (0..).zip(reads) {
        queue.push(token, offset, len).expect("push");
    }
    for (offset, len) in [(BORDER - 1, 2), (joined.size() - 1, 2), (u64::MAX, 1)] {
        let error = queue.push(9, offset, len).expect_err("on two devices, or none");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
    assert!(!queue.has_ended());
    queue.submit();
    assert!(queue.has_ended());
    let mut found = Vec::new();
    queue.ended(&mut |token, buffer| found.push((token, buffer.expect("read").to_vec())));
    found.sort_unstable();
    for ((token, found), (offset, len)) in found.into_iter().zip(reads) {
        let at = offset as usize;
        assert_eq!(found, bytes[at..at + len], "read {token}");
    }
    assert!(!queue.has_ended());
    // Devices without read queues have none when joined.
    assert!(world.joined.read_queue(event.as_fd()).is_err());
}

#[test]
fn a_joined_device_grows_at_its_end_and_the_next_sync_covers_it() {
    let world = world();
    world.joined.sync().expect("sync");
    let (size, syncs) = (world.joined.size(), world.syncs());
    world.joined.grow(size + 8192).expect("grows");
    assert_eq!(world.joined.size(), size + 8192);
    assert_eq!((world.first.size(), world.second.size()), (4096, 3 * 4096));
    world.joined.sync().expect("sync");
    assert_eq!(world.syncs(), [syncs[0], syncs[1] + 1]);
    world.joined.write_at(size + 8000, &[5; 192]).expect("write");
    assert_eq!(all(&*world.second)[3 * 4096 - 192..], [5; 192]);
    assert!(world.joined.grow(size).is_err());
}
