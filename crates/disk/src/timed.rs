//! A device whose reads, writes and syncs are timed. The time of a call counts whether it succeeds
//! or fails, because a device that fails is often slow first.
//!
//! Many threads may each read through their own [queue](Device::read_queue) at the highest rates,
//! so the queues are spread over several recorders. All other calls of a device share one recorder
//! per kind. Such a call takes far longer than the locked instruction that adds its time.

use crate::{Device, Histogram, ReadBuffer, ReadQueue, Recorder};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// A clock that never goes back; its zero is arbitrary.
#[derive(Clone)]
pub struct MonotonicClock(pub Arc<dyn Fn() -> Duration + Send + Sync>);

impl MonotonicClock {
    fn now_ns(&self) -> u64 {
        u64::try_from((self.0)().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl fmt::Debug for MonotonicClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MonotonicClock")
    }
}

/// The number of recorders that the read queues of a device share. With 64 threads, eight threads
/// share a recorder and its cache lines. That costs little, because each thread writes to its
/// recorder far less than a million times a second.
const SHARES: usize = 8;

/// The durations of the reads, writes and syncs of one device.
#[derive(Debug, Default)]
pub struct DeviceTimes {
    queued_reads: [Aligned; SHARES],
    /// The number of read queues created so far. It chooses the recorder of the next queue.
    queues: AtomicUsize,
    /// Synchronous reads, for which the calling thread waits.
    reads: Recorder,
    writes: Recorder,
    syncs: Recorder,
}

// A store has at most 64 devices. The times of all of them take less than 0.4 MB.
const _: () = assert!(size_of::<DeviceTimes>() <= 6 << 10);

/// A recorder with its own cache lines. The alignment is that of two lines, because processors
/// fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Aligned(Recorder);

/// The times of a device at one moment, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceHistograms {
    /// Reads of any length. Reads that are submitted together share one reading of the clock, so
    /// each of them is timed from the moment when the first of them is added. The time ends when
    /// the thread of the queue finds that the read has ended.
    pub read: Histogram,
    /// Writes of any length. Many of them end in memory of the operating system, which a sync then
    /// writes to the device.
    pub write: Histogram,
    /// Syncs.
    pub sync: Histogram,
}

impl DeviceTimes {
    /// Returns the times of all calls that have ended.
    pub fn read(&self) -> DeviceHistograms {
        let mut read = self.reads.read();
        self.queued_reads.iter().for_each(|share| read.add(&share.0.read()));
        DeviceHistograms { read, write: self.writes.read(), sync: self.syncs.read() }
    }
}

/// Wraps a device and measures the time of its calls.
#[derive(Debug)]
pub struct Timed {
    device: Arc<dyn Device>,
    clock: MonotonicClock,
    times: Arc<DeviceTimes>,
}

impl Timed {
    /// Times the calls of `device` with `clock`.
    pub fn new(device: Arc<dyn Device>, clock: MonotonicClock) -> Timed {
        Timed { device, clock, times: Arc::default() }
    }

    /// Returns the recorders of this device. They also record the calls that follow.
    pub fn times(&self) -> &Arc<DeviceTimes> {
        &self.times
    }

    fn timed<T>(&self, recorder: &Recorder, call: impl FnOnce(&dyn Device) -> T) -> T {
        let began_ns = self.clock.now_ns();
        let result = call(&*self.device);
        recorder.add_shared(self.clock.now_ns().saturating_sub(began_ns));
        result
    }
}

impl Device for Timed {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.timed(&self.times.reads, |device| device.read_at(offset, buffer))
    }

    fn read_stored(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.timed(&self.times.reads, |device| device.read_stored(offset, buffer))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.timed(&self.times.writes, |device| device.write_at(offset, bytes))
    }

    fn write_directly(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.timed(&self.times.writes, |device| device.write_directly(offset, bytes))
    }

    fn sync(&self) -> io::Result<()> {
        self.timed(&self.times.syncs, |device| device.sync())
    }

    fn prepare(&self, offset: u64, length: usize) -> io::Result<usize> {
        self.device.prepare(offset, length)
    }

    fn grow(&self, size: u64) -> io::Result<()> {
        self.device.grow(size)
    }

    fn shrink(&self, size: u64) -> io::Result<()> {
        self.device.shrink(size)
    }

    fn read_queue(&self, event: BorrowedFd<'_>) -> io::Result<Box<dyn ReadQueue>> {
        let queue = self.device.read_queue(event)?;
        let share = self.times.queues.fetch_add(1, Relaxed) % SHARES;
        Ok(Box::new(TimedReads {
            queue,
            clock: self.clock.clone(),
            times: Arc::clone(&self.times),
            share,
            flying: PendingReads::default(),
            began_ns: None,
        }))
    }
}

/// Wraps a read queue and measures the time of its reads.
#[derive(Debug)]
struct TimedReads {
    queue: Box<dyn ReadQueue>,
    clock: MonotonicClock,
    times: Arc<DeviceTimes>,
    /// The index of this queue's recorder in [`DeviceTimes::queued_reads`].
    share: usize,
    flying: PendingReads,
    /// The time at which the first read since the last submission was added; `None` if there is
    /// none.
    began_ns: Option<u64>,
}

/// The reads that have not ended. A read's index in `places` is its token in the inner queue, so
/// finding a read takes no search. The caller limits the number of its reads, and so the number of
/// places.
#[derive(Debug, Default)]
struct PendingReads {
    /// For each read, the caller's token and the time at which the read began, in nanoseconds.
    places: Vec<(u64, u64)>,
    /// Indexes in `places` that belong to no read.
    free: Vec<usize>,
}

impl PendingReads {
    /// Adds a read. Returns its place.
    fn add(&mut self, token: u64, began_ns: u64) -> usize {
        let read = (token, began_ns);
        match self.free.pop() {
            Some(place) => {
                self.places[place] = read;
                place
            }
            None => {
                self.places.push(read);
                self.places.len() - 1
            }
        }
    }
}

impl ReadQueue for TimedReads {
    fn push(&mut self, token: u64, offset: u64, len: usize) -> io::Result<()> {
        let began_ns = *self.began_ns.get_or_insert_with(|| self.clock.now_ns());
        let place = self.flying.add(token, began_ns);
        let pushed = self.queue.push(place as u64, offset, len);
        if pushed.is_err() {
            self.flying.free.push(place);
        }
        pushed
    }

    fn submit(&mut self) {
        self.began_ns = None;
        self.queue.submit();
    }

    fn has_ended(&mut self) -> bool {
        self.queue.has_ended()
    }

    fn ended(&mut self, each: &mut dyn FnMut(u64, io::Result<ReadBuffer>)) {
        let TimedReads { queue, clock, times, share, flying, .. } = self;
        let recorder = &times.queued_reads[*share].0;
        let mut now_ns = None;
        queue.ended(&mut |place, read| {
            let place = place as usize;
            let (token, began_ns) = flying.places[place];
            flying.free.push(place);
            let now_ns = *now_ns.get_or_insert_with(|| clock.now_ns());
            recorder.add_shared(now_ns.saturating_sub(began_ns));
            each(token, read);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Failure, Fault, Operation, SimDevice};
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    const MS: u64 = 1_000_000;

    /// Returns a clock that moves on by `step` milliseconds each time it is read, and the number of
    /// its readings.
    fn stepping(step: u64) -> (MonotonicClock, Arc<AtomicU64>) {
        let looks = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&looks);
        let clock = move || Duration::from_millis(step * counted.fetch_add(1, Relaxed));
        (MonotonicClock(Arc::new(clock)), looks)
    }

    #[test]
    fn reads_writes_and_syncs_are_timed_apart() {
        let device = Arc::new(SimDevice::new(1 << 20, 3));
        let (clock, looks) = stepping(3);
        let timed = Timed::new(Arc::clone(&device) as Arc<dyn Device>, clock);
        timed.write_at(4096, b"one").unwrap();
        timed.write_directly(8192, b"two").unwrap();
        timed.sync().unwrap();
        let mut bytes = [0; 3];
        timed.read_at(4096, &mut bytes).unwrap();
        assert_eq!(&bytes, b"one");
        timed.read_stored(0, &mut [0; 4096]).unwrap();
        timed.read_at(8192, &mut bytes).unwrap();
        assert_eq!(&bytes, b"two");
        let times = timed.times().read();
        let found = [&times.read, &times.write, &times.sync].map(|all| (all.count(), all.sum));
        assert_eq!(found, [(3, 9 * MS), (2, 6 * MS), (1, 3 * MS)]);
        // Calls that are not timed do not read the clock.
        let before = looks.load(Relaxed);
        assert_eq!(timed.size(), 1 << 20);
        let _ = (timed.prepare(0, 4096), timed.grow(1 << 20), timed.shrink(1 << 20));
        assert_eq!(looks.load(Relaxed), before);
    }

    #[test]
    fn failed_calls_are_timed_and_fail_as_before() {
        let device = Arc::new(SimDevice::new(1 << 20, 3));
        device.plan(Fault::lasting(Operation::Sync, 1, Failure::Io));
        let timed = Timed::new(Arc::clone(&device) as Arc<dyn Device>, stepping(2).0);
        assert!(timed.sync().is_err());
        assert_eq!((timed.times().read().sync.count(), timed.times().read().sync.sum), (1, 2 * MS));
        assert!(timed.read_at(1 << 20, &mut [0]).is_err());
        assert_eq!(timed.times().read().read.count(), 1);
    }

    /// A device with a queue whose reads end at the next call of `ended`, in reverse order.
    #[derive(Debug)]
    struct Queued(SimDevice);

    #[derive(Debug, Default)]
    struct Backwards(Vec<(u64, u64)>, Vec<(u64, u64)>);

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
            Ok(Box::<Backwards>::default())
        }
    }

    impl ReadQueue for Backwards {
        fn push(&mut self, token: u64, offset: u64, _len: usize) -> io::Result<()> {
            if offset == u64::MAX {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            self.0.push((token, offset));
            Ok(())
        }
        fn submit(&mut self) {
            self.1.append(&mut self.0);
        }
        fn has_ended(&mut self) -> bool {
            !self.1.is_empty()
        }
        fn ended(&mut self, each: &mut dyn FnMut(u64, io::Result<ReadBuffer>)) {
            while let Some((token, offset)) = self.1.pop() {
                each(token, Ok(ReadBuffer::new(offset, 8, 8)));
            }
        }
    }

    #[test]
    fn queued_reads_take_from_their_submission_until_they_are_found_to_have_ended() {
        let time = Arc::new(AtomicU64::new(0));
        let shown = Arc::clone(&time);
        let clock = MonotonicClock(Arc::new(move || Duration::from_millis(shown.load(Relaxed))));
        let timed = Timed::new(Arc::new(Queued(SimDevice::new(1 << 20, 1))), clock);
        let event = std::fs::File::open("/dev/null").unwrap();
        let mut queue = timed.read_queue(event.as_fd()).unwrap();
        let mut other = timed.read_queue(event.as_fd()).unwrap();
        let mut tokens = Vec::new();
        // The caller's tokens may be any numbers, also equal ones. A refused read has no effect on
        // the others.
        for (at, token) in [(1, 700), (2, 700), (5, u64::MAX)] {
            time.store(at, Relaxed);
            assert!(queue.push(9, u64::MAX, 8).is_err());
            queue.push(token, 4096, 8).unwrap();
            queue.submit();
        }
        time.store(7, Relaxed);
        assert!(queue.has_ended() && !other.has_ended());
        queue.ended(&mut |token, read| tokens.push((token, read.unwrap().len())));
        assert_eq!(tokens, [(u64::MAX, 8), (700, 8), (700, 8)]);
        other.push(1, 0, 8).unwrap();
        other.submit();
        time.store(17, Relaxed);
        other.ended(&mut |token, _| assert_eq!(token, 1));
        let sum = |timed: &Timed| {
            let read = timed.times().read().read;
            (read.count(), read.sum / MS)
        };
        assert_eq!(sum(&timed), (4, 2 + 5 + 6 + 10));
        // Places are reused, and the times of a queue are kept after the queue is dropped.
        for token in 0..100 {
            queue.push(token, 0, 8).unwrap();
            queue.submit();
            queue.ended(&mut |found, _| assert_eq!(found, token));
        }
        drop(queue);
        assert_eq!(sum(&timed), (104, 23));
        drop(other);
        assert_eq!(sum(&timed), (104, 23));
        for _ in 0..2 * SHARES {
            timed.read_queue(event.as_fd()).unwrap();
        }
    }
}
