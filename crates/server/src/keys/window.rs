//! The latest samples, each with a prefix of its key, in a bounded amount of memory. Statistics by
//! prefix are made from the samples when the admin port needs them. So no tree of prefixes has to
//! be maintained. Every number in the statistics is an estimate from random samples, and the error
//! of the estimate is known.

use std::collections::VecDeque;

/// The largest number of samples in a window.
const SAMPLES: usize = 16 << 10;
/// The largest total length of the samples' prefixes, in bytes.
const NAMES: usize = 512 << 10;

/// The latest samples, the oldest first.
#[derive(Clone, Debug)]
pub(super) struct Window<T> {
    samples: VecDeque<Timed<T>>,
    /// The prefixes of all samples, one after another.
    names: VecDeque<u8>,
    /// The time since which no sample was dropped, in milliseconds.
    since_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct Timed<T> {
    time_ms: u64,
    len: u8,
    sample: T,
}

impl<T: Copy> Window<T> {
    /// Creates an empty window that covers the time from `now_ms` on.
    pub(super) fn new(now_ms: u64) -> Self {
        Window { samples: VecDeque::new(), names: VecDeque::new(), since_ms: now_ms }
    }

    /// Adds a sample with the prefix `name`. Drops the oldest samples to make room.
    pub(super) fn push(&mut self, now_ms: u64, name: &[u8], sample: T) {
        let Ok(len) = u8::try_from(name.len()) else { return };
        while self.samples.len() >= SAMPLES || self.names.len() + name.len() > NAMES {
            self.drop_oldest();
        }
        self.samples.push_back(Timed { time_ms: now_ms, len, sample });
        self.names.extend(name);
    }

    /// Drops the samples from before `time_ms`.
    pub(super) fn expire(&mut self, time_ms: u64) {
        while self.samples.front().is_some_and(|oldest| oldest.time_ms < time_ms) {
            self.drop_oldest();
        }
        self.since_ms = self.since_ms.max(time_ms);
    }

    fn drop_oldest(&mut self) {
        if let Some(oldest) = self.samples.pop_front() {
            self.names.drain(..usize::from(oldest.len));
            self.since_ms = self.since_ms.max(oldest.time_ms);
        }
    }

    /// Returns the memory that the window takes, in bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.samples.capacity() * size_of::<Timed<T>>() + self.names.capacity()
    }

    pub(super) fn len(&self) -> usize {
        self.samples.len()
    }

    /// Returns the length of the period that the samples cover, in seconds; at least 1 ms.
    pub(super) fn seconds(&self, now_ms: u64) -> f64 {
        now_ms.saturating_sub(self.since_ms).max(1) as f64 / 1000.0
    }

    /// Returns the prefix and the data of each sample.
    pub(super) fn samples(&mut self) -> impl Iterator<Item = (&[u8], T)> {
        let mut names = &*self.names.make_contiguous();
        self.samples.iter().map(move |timed| {
            let (name, rest) = names.split_at(usize::from(timed.len));
            names = rest;
            (name, timed.sample)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_samples_make_room() {
        let mut window = Window::new(5);
        for number in 0..40_000_u64 {
            let name = vec![(number % 251) as u8; number as usize % 20];
            window.push(10 + number, &name, number);
        }
        assert_eq!((window.len(), window.since_ms), (SAMPLES, 10 + 40_000 - SAMPLES as u64 - 1));
        for (expected, (name, number)) in (40_000 - SAMPLES as u64..).zip(window.samples()) {
            assert_eq!(number, expected);
            assert!(name.len() == number as usize % 20);
            assert!(name.iter().all(|&byte| u64::from(byte) == number % 251));
        }
        for number in 0..40_000 {
            window.push(50_000, &[7; 250], number);
            assert!(window.names.len() <= NAMES && window.samples.len() <= SAMPLES);
        }
        assert_eq!(window.len(), NAMES / 250);
        window.push(60_000, &[0; 256], 1);
        assert_eq!(window.len(), NAMES / 250);
    }

    #[test]
    fn old_samples_expire() {
        let mut window = Window::new(1000);
        assert_eq!(window.seconds(3000), 2.0);
        for time_ms in [2000, 3000, 4000] {
            window.push(time_ms, b"a:", time_ms);
        }
        window.expire(3000);
        assert_eq!((window.len(), window.seconds(4000)), (2, 1.0));
        assert_eq!(window.samples().map(|(_, time)| time).collect::<Vec<_>>(), [3000, 4000]);
        window.expire(9000);
        assert_eq!((window.len(), window.names.len()), (0, 0));
    }
}
