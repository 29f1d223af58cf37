//! The sampled requests of all workers: a sketch of the hottest keys, and a window of the latest
//! requests with the prefixes of their keys.
//!
//! One lock protects the samples. A worker never waits for it: if the lock is taken, the worker
//! drops its sample and counts it as lost. Only the admin port takes the lock for long, to copy the
//! samples.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::aged::AgedSketch;
use super::prefix::Prefixes;
use super::sampling::interval_for;
use super::sketch::{Sampled, SketchEntry};
use super::window::Window;

/// A [`Sketch`](super::sketch::Sketch) counts a key separately for each `group` that a caller
/// names. Here all keys have this group.
const ONE: u64 = 0;
/// The age at which requests leave the window, in milliseconds.
const WINDOW_MS: u64 = 60_000;
/// The number of samples per second at which sampling aims.
const AIM: u64 = 1024;
/// The bounds of the sampling interval: on average, one of 16 to 16 384 keys is sampled. The lower
/// bound limits the cost of a request. The upper bound limits the time until a change of the load
/// takes effect.
const INTERVALS: (u32, u32) = (16, 16_384);
/// The sampling interval before the load is known: on average, one of 64 keys is sampled.
const FIRST: u32 = 64;

/// A sampled request in the window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RequestSample {
    pub(super) weight: f32,
    pub(super) kind: RequestKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    Hit,
    Miss,
    /// A read whose reply does not tell whether the key was found.
    OutcomeUnknown,
    Write,
}

/// One key of a request that a worker samples.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeenRequest<'a> {
    pub(super) key: &'a [u8],
    pub(super) kind: RequestKind,
    /// Bytes of the found item in the reply, plus the bytes of the request if it writes.
    pub(super) bytes: usize,
    /// The sample counts as this many keys: on average, one of this many requested keys is sampled.
    pub(super) weight: u32,
    pub(super) time_ms: u64,
}

/// The sampled requests of all workers.
#[derive(Debug)]
pub(crate) struct HotKeys {
    /// The mean number of keys per sample; 0 while sampling is off.
    interval: AtomicU32,
    lost: AtomicU64,
    prefixes: Prefixes,
    state: Mutex<HotState>,
}

/// The samples since sampling was turned on. `None` before the first sample or the first
/// [`HotKeys::beat`].
type HotState = Option<Box<HotSamples>>;

#[derive(Debug)]
struct HotSamples {
    aged: AgedSketch,
    window: Window<RequestSample>,
    /// The number of keys of requests that the samples since `beat_ms` stand for. This is the sum
    /// of the samples' weights.
    keys: u64,
    beat_ms: u64,
}

/// A copy of the samples, from which a report is made without the lock.
pub(super) struct HotCopy {
    pub(super) entries: Vec<SketchEntry>,
    /// The seconds by which the weights of the entries must be divided to get rates.
    pub(super) seconds: f64,
    pub(super) window: Window<RequestSample>,
    pub(super) interval: u32,
    pub(super) lost: u64,
}

impl Default for HotKeys {
    fn default() -> HotKeys {
        HotKeys::new(Prefixes::default())
    }
}

impl HotKeys {
    /// Creates a sampler that is off.
    pub(crate) fn new(prefixes: Prefixes) -> HotKeys {
        HotKeys {
            interval: AtomicU32::new(0),
            lost: AtomicU64::new(0),
            prefixes,
            state: Mutex::default(),
        }
    }

    pub(super) fn prefixes(&self) -> Prefixes {
        self.prefixes
    }

    /// Returns the mean number of keys per sample; 0 while sampling is off.
    #[inline]
    pub(super) fn interval(&self) -> u32 {
        self.interval.load(Relaxed)
    }

    pub(crate) fn is_on(&self) -> bool {
        self.interval() > 0
    }

    /// Turns sampling on or off. Each worker notices the change in its next turn.
    pub(crate) fn set_on(&self, on: bool) {
        // The interval is read under the lock, so that of two calls with the same `on` only one
        // drops the samples.
        let mut state = self.lock();
        if on != self.is_on() {
            *state = None;
            self.interval.store(if on { FIRST } else { 0 }, Relaxed);
        }
    }

    /// Adds a sample. If the lock is taken, counts the sample as lost instead of waiting.
    pub(super) fn take(&self, seen: &SeenRequest<'_>) {
        let Ok(mut state) = self.state.try_lock() else {
            self.lost.fetch_add(1, Relaxed);
            return;
        };
        if !self.is_on() {
            return;
        }
        let samples = state.get_or_insert_with(|| HotSamples::new(seen.time_ms));
        let weight = f64::from(seen.weight);
        let writes = seen.kind == RequestKind::Write;
        let sampled = Sampled { weight, variance: weight * weight, writes, bytes: seen.bytes };
        samples.aged.sketch.count(ONE, seen.key, sampled);
        let sample = RequestSample { weight: seen.weight as f32, kind: seen.kind };
        samples.window.push(seen.time_ms, self.prefixes.of(seen.key), sample);
        samples.keys += u64::from(seen.weight);
    }

    /// Ages the sketch, and adapts the interval to the load. Called about once a second.
    pub(crate) fn beat(&self, now_ms: u64) {
        let mut state = self.lock();
        if !self.is_on() {
            return;
        }
        let samples = state.get_or_insert_with(|| HotSamples::new(now_ms));
        samples.aged.age(now_ms);
        samples.window.expire(now_ms.saturating_sub(WINDOW_MS));
        let elapsed_ms = now_ms.saturating_sub(samples.beat_ms);
        // `keys` sums the weights of the samples. The number of samples times the present interval
        // would be wrong: a worker with few requests may still sample with an earlier interval.
        if let Some(interval) = interval_for(samples.keys, elapsed_ms, AIM, INTERVALS) {
            (samples.beat_ms, samples.keys) = (now_ms, 0);
            self.interval.store(interval, Relaxed);
        }
    }

    /// Returns a copy of the samples; `None` while sampling is off.
    pub(super) fn copy(&self, now_ms: u64) -> Option<HotCopy> {
        let mut state = self.lock();
        let interval = self.interval();
        if interval == 0 {
            return None;
        }
        let samples = state.get_or_insert_with(|| HotSamples::new(now_ms));
        samples.aged.age(now_ms);
        samples.window.expire(now_ms.saturating_sub(WINDOW_MS));
        Some(HotCopy {
            entries: samples.aged.sketch.entries().to_vec(),
            seconds: samples.aged.seconds(),
            window: samples.window.clone(),
            interval,
            lost: self.lost.load(Relaxed),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HotSamples {
    fn new(now_ms: u64) -> Box<HotSamples> {
        Box::new(HotSamples {
            aged: AgedSketch::new(now_ms),
            window: Window::new(now_ms),
            keys: 0,
            beat_ms: now_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::aged::LEAST;

    fn seen(key: &[u8], weight: u32, time_ms: u64) -> SeenRequest<'_> {
        SeenRequest { key, kind: RequestKind::Hit, bytes: 100, weight, time_ms }
    }

    #[test]
    fn rates_are_those_of_the_last_half_lives() {
        let hot = HotKeys::default();
        hot.set_on(true);
        hot.beat(0);
        let rate = |now_ms, key: &[u8]| {
            let copy = hot.copy(now_ms).unwrap();
            let entry = copy.entries.iter().find(|entry| entry.key() == key);
            entry.map_or(0.0, |entry| entry.reads / copy.seconds)
        };
        for second in 0..200 {
            for _ in 0..10 {
                hot.take(&seen(b"old", 16, second * 1000 + 500));
            }
            hot.beat((second + 1) * 1000);
            assert!((rate((second + 1) * 1000, b"old") - 160.0).abs() < 1e-6);
        }
        for second in 200..230 {
            for _ in 0..10 {
                hot.take(&seen(b"new", 16, second * 1000 + 500));
            }
            hot.beat((second + 1) * 1000);
        }
        // One half-life after the change, each of the two keys must have half of the steady rate of
        // 160.
        for key in [&b"old"[..], b"new"] {
            let rate = rate(230_000, key);
            assert!((rate - 80.0).abs() < 2.0, "{rate}");
        }
        let copy = hot.copy(230_000).unwrap();
        assert_eq!((copy.window.len(), copy.window.seconds(230_000)), (600, 60.0));
        let later = hot.copy(800_000).unwrap();
        assert!(later.entries.iter().all(|entry| entry.reads < 0.1) && later.seconds >= LEAST);
        let much_later = hot.copy(100_000_000).unwrap();
        assert_eq!((much_later.entries.len(), much_later.seconds), (0, LEAST));
    }

    #[test]
    fn the_interval_follows_the_load() {
        let hot = HotKeys::default();
        hot.set_on(true);
        assert_eq!(hot.interval(), FIRST);
        hot.beat(0);
        let mut now_ms = 0;
        let mut second = |requests: u64| {
            let interval = hot.interval();
            let samples = requests / u64::from(interval);
            (0..samples).for_each(|_| hot.take(&seen(b"key", interval, now_ms)));
            now_ms += 1000;
            hot.beat(now_ms);
            hot.interval()
        };
        assert_eq!(second(0), 16);
        assert!((960..=992).contains(&second(1_000_000)));
        assert!((960..=992).contains(&second(1_000_000)));
        assert_eq!(second(20_000_000), 16_384);
        assert_eq!(second(10_000), 16);
    }

    #[test]
    fn a_sample_counts_with_the_interval_of_its_worker() {
        let hot = HotKeys::default();
        hot.set_on(true);
        hot.beat(0);
        hot.beat(1000);
        assert_eq!(hot.interval(), 16);
        // These samples come from workers that still use the interval 4096, so each stands for 4096
        // keys.
        (0..50).for_each(|_| hot.take(&seen(b"key", 4096, 1500)));
        hot.beat(2000);
        assert_eq!(hot.interval(), 200);
    }

    #[test]
    fn nothing_is_kept_while_it_is_off() {
        let hot = HotKeys::default();
        hot.take(&seen(b"key", 1, 0));
        hot.beat(0);
        assert!(hot.copy(0).is_none() && hot.lock().is_none());
        hot.set_on(true);
        hot.take(&seen(b"key", 1, 0));
        assert_eq!(hot.copy(0).unwrap().entries.len(), 1);
        hot.set_on(false);
        assert!(hot.copy(0).is_none() && hot.lock().is_none());
        hot.set_on(true);
        assert!(hot.copy(0).unwrap().entries.is_empty());
    }

    #[test]
    fn a_sample_that_would_wait_is_lost_and_counted() {
        let hot = HotKeys::default();
        hot.set_on(true);
        let held = hot.lock();
        hot.take(&seen(b"key", 1, 0));
        drop(held);
        let copy = hot.copy(0).unwrap();
        assert_eq!((copy.entries.len(), copy.lost), (0, 1));
    }

    #[test]
    fn the_memory_is_bounded() {
        let hot = HotKeys::default();
        hot.set_on(true);
        for number in 0..100_000_u64 {
            let mut key = [b':'; 250];
            key[200..].copy_from_slice(format!("{number:050}").as_bytes());
            key[4..200].fill(b'x');
            hot.take(&seen(&key, 16, number));
        }
        let state = hot.lock();
        let samples = state.as_ref().unwrap();
        assert_eq!(samples.aged.sketch.entries().len(), crate::keys::sketch::KEYS);
        assert!(samples.window.bytes() < 2 << 20, "{}", samples.window.bytes());
    }
}
