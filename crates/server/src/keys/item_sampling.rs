//! A thread takes random samples of all items, for statistics by prefix and to find the largest
//! items. It does so at a limited rate, and only while clients of the admin port read the results.
//!
//! Invariant: the engine session of the thread is asleep whenever the thread waits, so the engine's
//! epochs never wait for the thread.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use larder_engine::{Engine, ItemSampler, Listed, Reads, UnixSeconds};

use super::prefix::Prefixes;
use super::window::Window;
use crate::clock::{Clock, random_seed};
use crate::unpark::waker_of_this_thread;

/// The sampling thread samples items in steps. This is the interval between two steps, in
/// milliseconds.
const STEP_MS: u64 = 100;
/// The largest number of items per step, which limits the sampling to 2000 items per second.
const ITEMS: usize = 200;
/// The largest number of items read from devices per step, which limits such reads to 200 per
/// second.
const READS: usize = 20;
/// Time after which reads that have not arrived are abandoned, in milliseconds. So a device that
/// does not answer does not stop the sampling of items on other devices.
const PATIENCE_MS: u64 = 3000;
/// The sampling pauses after the admin port has not read its results for this time, in
/// milliseconds.
const WANTED_MS: u64 = 60_000;
/// The age at which samples leave the window, in milliseconds.
const WINDOW_MS: u64 = 60_000;
/// The largest number of large items that are remembered.
const LARGE: usize = 20;
/// Time after which a large item that was not seen again is forgotten, in milliseconds.
const LARGE_MS: u64 = 600_000;

/// A sampled live item in the window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ItemSample {
    /// Size of the record, in bytes.
    pub(super) bytes: u32,
    /// Time to live, in seconds; `None` for an item that does not expire.
    pub(super) ttl: Option<u32>,
}

/// One of the largest items seen.
#[derive(Clone, Debug)]
pub(super) struct LargeItem {
    pub(super) key: Box<[u8]>,
    /// Size of the record, in bytes.
    pub(super) bytes: usize,
    pub(super) seen_ms: u64,
}

/// The samples, and the state that tells the sampling thread whether to take more.
#[derive(Debug, Default)]
pub(crate) struct ItemSampling {
    prefixes: Prefixes,
    state: Mutex<ItemSamplingState>,
}

#[derive(Debug, Default)]
struct ItemSamplingState {
    thread: Option<Thread>,
    /// Time at which the results were last read, in milliseconds.
    looked_ms: Option<u64>,
    stopped: bool,
    samples: Option<ItemSamples>,
}

/// The samples taken so far.
#[derive(Clone, Debug)]
pub(super) struct ItemSamples {
    /// The sampled items. `None` stands for an item that has expired but was not removed yet.
    pub(super) window: Window<Option<ItemSample>>,
    /// The largest items seen, the largest first.
    pub(super) large: Vec<LargeItem>,
    /// Number of live items seen since the sampling began.
    pub(super) seen: u64,
    /// Number of items that could not be read.
    pub(super) unreadable: u64,
}

impl ItemSampling {
    /// Creates a sampling without samples.
    pub(crate) fn new(prefixes: Prefixes) -> ItemSampling {
        ItemSampling { prefixes, state: Mutex::default() }
    }

    /// Returns a copy of the samples, if there are any. Makes the thread take samples for another
    /// [`WANTED_MS`].
    pub(super) fn look(&self, now_ms: u64) -> Option<ItemSamples> {
        let mut state = self.lock();
        state.looked_ms = Some(now_ms);
        if let Some(thread) = &state.thread {
            thread.unpark();
        }
        state.samples.clone()
    }

    fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    /// Returns true if the thread should take samples: the results were read within the last
    /// [`WANTED_MS`], and the server is not stopping. Otherwise drops the samples if they were not
    /// read within that time.
    fn is_wanted(&self, now_ms: u64) -> bool {
        let mut state = self.lock();
        let looked = state.looked_ms.is_some_and(|at| now_ms.saturating_sub(at) < WANTED_MS);
        if !looked {
            state.samples = None;
        }
        looked && !state.stopped
    }

    fn lock(&self) -> MutexGuard<'_, ItemSamplingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ItemSamples {
    pub(super) fn new(now_ms: u64) -> ItemSamples {
        ItemSamples { window: Window::new(now_ms), large: Vec::new(), seen: 0, unreadable: 0 }
    }

    fn add(&mut self, prefixes: Prefixes, seen: &SeenItems, now_ms: u64) {
        let mut keys = &*seen.keys;
        for &(len, bytes, ttl) in &seen.items {
            let (key, others) = keys.split_at(len);
            keys = others;
            let sample = ItemSample { bytes: u32::try_from(bytes).unwrap_or(u32::MAX), ttl };
            self.window.push(now_ms, prefixes.of(key), Some(sample));
            self.seen += 1;
            self.note_large(key, bytes, now_ms);
        }
        for _ in 0..seen.expired {
            self.window.push(now_ms, &[], None);
        }
        self.unreadable = seen.unreadable;
        self.expire(now_ms);
    }

    fn note_large(&mut self, key: &[u8], bytes: usize, now_ms: u64) {
        if let Some(at) = self.large.iter().position(|large| *large.key == *key) {
            self.large.remove(at);
        } else if self.large.len() >= LARGE
            && self.large.last().is_some_and(|least| least.bytes >= bytes)
        {
            return;
        }
        let at = self.large.partition_point(|large| large.bytes >= bytes);
        self.large.insert(at, LargeItem { key: key.into(), bytes, seen_ms: now_ms });
        self.large.truncate(LARGE);
    }

    fn expire(&mut self, now_ms: u64) {
        self.window.expire(now_ms.saturating_sub(WINDOW_MS));
        self.large.retain(|large| now_ms.saturating_sub(large.seen_ms) < LARGE_MS);
    }
}

/// The items that one step saw. The thread adds them to the shared samples only after its session
/// is asleep, so it does not hold the lock of the samples during a call of the engine. Such a call
/// may wait for locks of the engine, and readers of the samples would then have to wait too.
#[derive(Debug, Default)]
struct SeenItems {
    /// The keys of all items, one after another.
    keys: Vec<u8>,
    /// Length of the key, size of the record, and time to live in seconds, of each live item.
    items: Vec<(usize, usize, Option<u32>)>,
    /// Number of sampled items that had expired.
    expired: u64,
    /// Number of items that could not be read, since the sampling began and not only in this step.
    unreadable: u64,
}

impl SeenItems {
    fn add(&mut self, item: &Listed<'_>, now: UnixSeconds) {
        let key = item.key();
        self.keys.extend(key);
        self.items.push((key.len(), item.record_size(), item.expiry().remaining(now)));
    }
}

/// The sampling thread. Dropping this value ends the thread.
#[derive(Debug)]
pub(crate) struct ItemSamplingThread {
    sampling: Arc<ItemSampling>,
    thread: Option<JoinHandle<()>>,
}

impl ItemSamplingThread {
    /// Starts a thread that sleeps until [`ItemSampling::look`] is called.
    pub(crate) fn start(
        sampling: Arc<ItemSampling>,
        engine: Arc<Engine>,
        clock: Clock,
    ) -> io::Result<ItemSamplingThread> {
        let of_thread = Arc::clone(&sampling);
        let run = move || {
            while !of_thread.is_stopped() {
                if of_thread.is_wanted(clock.millis()) {
                    take_samples(&of_thread, &engine, &clock);
                } else {
                    thread::park();
                }
            }
        };
        let thread = thread::Builder::new().name("sampling".to_owned()).spawn(run)?;
        sampling.lock().thread = Some(thread.thread().clone());
        // A call of `look` before `state.thread` was set could not wake the thread, so wake the
        // thread now.
        thread.thread().unpark();
        Ok(ItemSamplingThread { sampling, thread: Some(thread) })
    }
}

impl Drop for ItemSamplingThread {
    fn drop(&mut self) {
        self.sampling.lock().stopped = true;
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Takes samples until the results were not read for [`WANTED_MS`], or until the server stops.
/// The session exists only during this call, because the memory for reads is divided among all open
/// sessions.
fn take_samples(sampling: &ItemSampling, engine: &Arc<Engine>, clock: &Clock) {
    let mut session = engine.session(waker_of_this_thread());
    let mut sampler = ItemSampler::new(random_seed());
    let mut reads: Option<Reads> = None;
    let (mut asked_ms, mut next_ms) = (0, 0);
    loop {
        let nanos = clock.nanos();
        let now_ms = nanos / 1_000_000;
        if !sampling.is_wanted(now_ms) {
            break;
        }
        session.tick_at(nanos);
        let waits = now_ms.saturating_sub(asked_ms) < PATIENCE_MS
            && reads.as_mut().is_some_and(|reads| session.awaits(reads));
        let is_due = now_ms >= next_ms;
        let mut step = None;
        if !waits && (is_due || reads.is_some()) {
            let items = if is_due { ITEMS } else { 0 };
            let mut seen = SeenItems::default();
            let expired = sampler.expired();
            // The released records stay in memory until the next `tick_at`, so `sample` still finds
            // them.
            reads.take().into_iter().for_each(|reads| session.release(reads));
            session.sample(&mut sampler, items, READS, &mut |item| seen.add(&item, session.now()));
            (seen.expired, seen.unreadable) = (sampler.expired() - expired, sampler.unreadable());
            (reads, asked_ms) = (session.take_reads(), now_ms);
            step = Some(seen);
        }
        if is_due {
            next_ms = now_ms + STEP_MS;
        }
        session.sleep();
        if let Some(step) = step {
            let mut state = sampling.lock();
            let samples = state.samples.get_or_insert_with(|| ItemSamples::new(now_ms));
            samples.add(sampling.prefixes, &step, now_ms);
        }
        thread::park_timeout(Duration::from_millis(next_ms.saturating_sub(now_ms)));
    }
    reads.into_iter().for_each(|reads| session.release(reads));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_items_are_remembered() {
        let mut samples = ItemSamples::new(0);
        for number in 0..1000_usize {
            samples.note_large(format!("key{number}").as_bytes(), number * 7919 % 1000, 5);
        }
        let sizes = |samples: &ItemSamples| -> Vec<usize> {
            samples.large.iter().map(|large| large.bytes).collect()
        };
        assert_eq!(sizes(&samples), (1000 - LARGE..1000).rev().collect::<Vec<_>>());
        // An item that became smaller must stay in the list until a larger item displaces it.
        let key = samples.large[0].key.clone();
        samples.note_large(&key, 3, 100_000);
        assert_eq!((samples.large.len(), sizes(&samples)[LARGE - 1]), (LARGE, 3));
        samples.note_large(b"other", 4, 100_000);
        assert!(samples.large.iter().all(|large| large.key != key));
        samples.expire(LARGE_MS + 5);
        assert_eq!(sizes(&samples), [4]);
    }
}
