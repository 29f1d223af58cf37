//! The sampling of one worker: about one in N keys of its requests. Invariant: a key that is not
//! sampled costs one subtraction, and no access to memory that another thread writes.

use std::cell::Cell;
use std::sync::Arc;

use super::answer::{KeyOutcome, key_outcome};
use super::hot::{HotKeys, RequestKind, SeenRequest};
use super::sampling::Sampling;
use larder_engine::Key;

/// The sampling of one worker.
#[derive(Debug)]
pub(crate) struct KeySampler {
    hot: Arc<HotKeys>,
    sampling: Sampling,
    time_ms: Cell<u64>,
}

/// An executed request that is sampled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampledRequest<'a> {
    /// True unless the request only reads.
    pub(crate) writes: bool,
    /// Length of the request including its value, in bytes.
    pub(crate) len: usize,
    pub(crate) reply: &'a [u8],
}

impl KeySampler {
    /// Creates the sampler of a worker. `seed` must be random.
    pub(crate) fn new(hot: Arc<HotKeys>, seed: u64) -> KeySampler {
        KeySampler { hot, sampling: Sampling::new(seed), time_ms: Cell::new(0) }
    }

    /// Begins a turn of the worker.
    pub(crate) fn begin_turn(&self, now_ns: u64) {
        self.time_ms.set(now_ns / 1_000_000);
        self.sampling.begin_turn(self.hot.interval());
    }

    /// Counts the keys of an executed request. Returns true if the caller must
    /// [sample](Self::sample) it.
    #[inline(always)]
    pub(crate) fn counts(&self, keys: usize) -> bool {
        self.sampling.counts(keys as u64)
    }

    /// Skips a request that was chosen for sampling but has no keys. Chooses a later key instead.
    #[cold]
    #[inline(never)]
    pub(crate) fn pass_over(&self) {
        self.sampling.draw(self.hot.interval());
    }

    /// Samples the chosen keys of a request. `keys` are the keys of the request that
    /// `request.reply` answers. At least one of them is chosen, unless `keys` is empty.
    #[cold]
    #[inline(never)]
    pub(crate) fn sample(&self, keys: &[Key<'_>], request: SampledRequest<'_>) {
        let mut at = self.sampling.left();
        if keys.is_empty() {
            return self.pass_over();
        }
        while let Some(key) = usize::try_from(at).ok().and_then(|at| keys.get(at)) {
            let key = key.bytes();
            let outcome = key_outcome(request.reply, key);
            let read = if let KeyOutcome::Found(len) = outcome { len } else { 0 };
            let written = if request.writes { request.len } else { 0 };
            let bytes = read.saturating_add(written);
            let kind = match outcome {
                _ if request.writes => RequestKind::Write,
                KeyOutcome::Found(_) => RequestKind::Hit,
                KeyOutcome::Missing => RequestKind::Miss,
                KeyOutcome::Nothing => RequestKind::OutcomeUnknown,
            };
            let (weight, time_ms) = (self.sampling.weight(), self.time_ms.get());
            self.hot.take(&SeenRequest { key, kind, bytes, weight, time_ms });
            self.sampling.draw(self.hot.interval());
            at = at.saturating_add(1).saturating_add(self.sampling.left());
        }
        self.sampling.set_left(at.saturating_sub(keys.len() as u64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::sampling::NEVER;
    use larder_engine::{Engine, Options, Session};
    use std::collections::HashMap;
    use std::task::Waker;

    fn session() -> Session {
        let options = Options { memory: 8 << 20, ..Options::default() };
        Engine::open_without_threads(options).unwrap().session(Waker::noop().clone())
    }

    fn sampler() -> (Arc<HotKeys>, KeySampler) {
        let hot = Arc::new(HotKeys::default());
        hot.set_on(true);
        let sampler = KeySampler::new(Arc::clone(&hot), 42);
        sampler.begin_turn(1_000_000_000);
        (hot, sampler)
    }

    fn reading(reply: &[u8]) -> SampledRequest<'_> {
        SampledRequest { writes: false, len: 10, reply }
    }

    /// Returns how many requests of each key the samples stand for.
    fn estimates(hot: &HotKeys) -> HashMap<Vec<u8>, f64> {
        let copy = hot.copy(1000).unwrap();
        copy.entries
            .iter()
            .map(|entry| (entry.key().to_vec(), entry.reads + entry.writes))
            .collect()
    }

    #[test]
    fn periodic_requests_are_sampled_without_bias() {
        let session = session();
        // The keys repeat with a period that equals the mean distance between samples. If the
        // distances were not random, every sample would be of the same key. Requests have one to
        // five keys.
        let names: Vec<String> = (0..64).map(|number| format!("key{number}")).collect();
        let keys: Vec<_> = names.iter().map(|name| session.key(name.as_bytes())).collect();
        let (hot, sampler) = sampler();
        let (mut at, mut length, mut total) = (0, 1, 0);
        while total < 4_000_000 {
            let end = (at + length).min(keys.len());
            let request = &keys[at..end];
            if sampler.counts(request.len()) {
                sampler.sample(request, reading(b""));
            }
            total += request.len();
            (at, length) = (if end == keys.len() { 0 } else { end }, length % 5 + 1);
        }
        let estimates = estimates(&hot);
        let sum: f64 = estimates.values().sum();
        assert!((sum / total as f64 - 1.0).abs() < 0.01, "{sum} of {total}");
        let expected = total as f64 / 64.0;
        for name in &names {
            let estimate = estimates[name.as_bytes()];
            // About 977 samples of each key: four standard deviations are 13 %.
            assert!((estimate / expected - 1.0).abs() < 0.13, "{name}: {estimate} of {expected}");
        }
    }

    #[test]
    fn a_request_with_many_keys_gives_several_samples() {
        let session = session();
        let names: Vec<String> = (0..4000).map(|number| format!("key{number}")).collect();
        let keys: Vec<_> = names.iter().map(|name| session.key(name.as_bytes())).collect();
        let (hot, sampler) = sampler();
        assert!(sampler.counts(keys.len()));
        sampler.sample(&keys, reading(b"END\r\n"));
        let samples = hot.copy(1000).unwrap().window.len();
        assert!((40..=90).contains(&samples), "{samples}");
    }

    #[test]
    fn an_interval_that_falls_is_followed_at_the_next_turn() {
        let session = session();
        let key = [session.key(b"key")];
        let (hot, sampler) = sampler();
        hot.beat(1000);
        for _ in 0..5000 {
            let (kind, bytes, weight, time_ms) = (RequestKind::Miss, 0, 16_384, 1500);
            hot.take(&SeenRequest { key: b"busy", kind, bytes, weight, time_ms });
        }
        hot.beat(2000);
        sampler.pass_over();
        assert_eq!(sampler.sampling.weight(), 16_384);
        sampler.sampling.set_left(30_000);
        sampler.begin_turn(2_000_000_000);
        assert_eq!(sampler.sampling.left(), 30_000, "the interval has not fallen");
        hot.beat(3000);
        sampler.begin_turn(3_000_000_000);
        for _ in 0..1600 {
            if sampler.counts(1) {
                sampler.sample(&key, reading(b"END\r\n"));
            }
        }
        let copy = hot.copy(3000).unwrap();
        let entry = copy.entries.iter().find(|entry| entry.key() == b"key").unwrap();
        // About 100 samples of weight 16 are expected, so about 1600 reads. The number of samples
        // varies less than if each request were sampled independently.
        assert!((1200.0..2000.0).contains(&entry.reads), "{}", entry.reads);
    }

    #[test]
    fn the_switch_is_followed_at_the_next_turn() {
        let session = session();
        let key = [session.key(b"key")];
        let (hot, sampler) = sampler();
        let many = || {
            for _ in 0..1000 {
                if sampler.counts(1) {
                    sampler.sample(&key, reading(b"VALUE key 0 1\r\na\r\nEND\r\n"));
                }
            }
            hot.copy(1000).map_or(0, |copy| copy.window.len())
        };
        assert!(many() > 5);
        hot.set_on(false);
        sampler.begin_turn(2_000_000_000);
        assert_eq!((many(), sampler.sampling.left() > NEVER / 2), (0, true));
        hot.set_on(true);
        assert_eq!(many(), 0);
        sampler.begin_turn(3_000_000_000);
        assert!(many() > 5);
    }
}
