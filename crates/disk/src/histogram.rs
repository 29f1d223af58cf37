//! Histograms of times in nanoseconds and of sizes in bytes. Both have the same buckets, so one
//! type serves both. The type is part of this crate, because this crate times its devices, and all
//! crates with histograms may use this crate.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The upper bounds of the first buckets. The bounds of each further decade are ten times those of
/// the decade before.
const DECADE: [u64; 6] = [100, 150, 200, 300, 500, 700];
/// The number of decades that the bounds span: from 100 ns to 10 s, or from 100 bytes to 10 GB.
const DECADES: usize = 8;
/// The number of bounds.
const BOUND_COUNT: usize = DECADES * DECADE.len() + 1;

/// The upper bounds of all buckets except the last one, which has no bound. A bound is at most 1.67
/// times the bound before it, which limits the error of a quantile.
const BOUNDS: [u64; BOUND_COUNT] = bounds();

const fn bounds() -> [u64; BOUND_COUNT] {
    let mut bounds = [0; BOUND_COUNT];
    let (mut at, mut factor) = (0, 1);
    while at < BOUND_COUNT {
        bounds[at] = DECADE[at % DECADE.len()] * factor;
        at += 1;
        if at % DECADE.len() == 0 {
            factor *= 10;
        }
    }
    bounds
}

/// The number of buckets.
const BUCKETS: usize = BOUND_COUNT + 1;

/// Maps the position of a value's leading bit, and the two bits after it, to a bucket. Values with
/// the same three bits at the same position form a range, and this is the bucket of the smallest
/// value of the range. The largest value is less than 1.25 times the smallest, and adjacent bounds
/// differ by a larger factor. So each value of the range is in this bucket or the next one.
const FIRST_BUCKET: [u8; 256] = first_buckets();

const fn first_buckets() -> [u8; 256] {
    let mut first = [0; 256];
    let mut step = 0;
    while step < first.len() {
        let (exponent, bits) = (step / 4, step as u64 % 4);
        // A value below 4 has fewer than two bits after its leading bit. It is far below the first
        // bound.
        let least = if exponent < 2 { 0 } else { (4 + bits) << (exponent - 2) };
        let mut bucket = 0;
        while bucket < BOUND_COUNT && BOUNDS[bucket] < least {
            bucket += 1;
        }
        first[step] = bucket as u8;
        step += 1;
    }
    first
}

/// Returns the bucket of a value.
#[inline]
fn bucket_of(value: u64) -> usize {
    let value = value.max(4);
    let exponent = 63 - value.leading_zeros();
    let bits = value >> (exponent - 2) & 3;
    let first = usize::from(FIRST_BUCKET[exponent as usize * 4 + bits as usize]);
    first + usize::from(first < BOUND_COUNT && BOUNDS[first] < value)
}

/// A histogram that is being recorded. Any thread may read it.
#[derive(Debug)]
pub struct Recorder {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

impl Default for Recorder {
    fn default() -> Self {
        Recorder { buckets: std::array::from_fn(|_| AtomicU64::default()), sum: 0.into() }
    }
}

impl Recorder {
    /// Adds `n` times the same value. Only one thread may call this function, because it loads and
    /// stores in separate steps. The separate steps save a locked instruction.
    #[inline]
    pub fn add(&self, value: u64, n: u64) {
        let add = |counter: &AtomicU64, by| {
            counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
        };
        add(&self.buckets[bucket_of(value)], n);
        add(&self.sum, value.saturating_mul(n));
    }

    /// Adds a value. Any thread may call this function, but then no thread may call
    /// [`add`](Recorder::add) on the same recorder.
    #[inline]
    pub fn add_shared(&self, value: u64) {
        self.buckets[bucket_of(value)].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    /// Returns what was recorded so far.
    pub fn read(&self) -> Histogram {
        Histogram {
            buckets: std::array::from_fn(|at| self.buckets[at].load(Relaxed)),
            sum: self.sum.load(Relaxed),
        }
    }
}

/// A histogram at one moment, or the sum of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; BUCKETS],
    /// The sum of all values.
    pub sum: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: [0; BUCKETS], sum: 0 }
    }
}

/// The name of the bucket without a bound, in [`Histogram::buckets_text`].
const UNBOUND: &str = "inf";

impl Histogram {
    /// Parses the result of [`Histogram::buckets_text`]. The text has no sum, so the parsed sum is
    /// 0. Returns `None` if the text has another form, or if its bounds are those of another
    /// version of Larder.
    pub fn parse(text: &str) -> Option<Histogram> {
        let mut read = Histogram::default();
        for pair in text.split_ascii_whitespace() {
            let (bound, count) = pair.split_once(':')?;
            let bucket = match bound {
                UNBOUND => BOUND_COUNT,
                bound => BOUNDS.binary_search(&bound.parse().ok()?).ok()?,
            };
            read.buckets[bucket] = count.parse().ok()?;
        }
        Some(read)
    }

    /// Returns the buckets that are not empty, as words `bound:count`. The count of a bound is the
    /// number of values that are at most this bound and above the bound before it.
    pub fn buckets_text(&self) -> String {
        let bounds = BOUNDS.iter().map(u64::to_string).chain([UNBOUND.to_owned()]);
        let pairs = bounds.zip(&self.buckets).filter(|(_, count)| **count > 0);
        pairs.map(|(bound, count)| format!("{bound}:{count}")).collect::<Vec<_>>().join(" ")
    }

    /// Adds another histogram.
    pub fn add(&mut self, other: &Histogram) {
        self.sum = self.sum.wrapping_add(other.sum);
        for (sum, bucket) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum = sum.wrapping_add(*bucket);
        }
    }

    /// Returns the histogram of the values that were recorded after `earlier` was read. If a count
    /// is lower than in `earlier`, the counts were reset meanwhile: then returns all values.
    pub fn growth(&self, earlier: &Histogram) -> Histogram {
        let mut pairs = self.buckets.iter().zip(&earlier.buckets);
        if pairs.all(|(now, before)| now >= before) { self.since(earlier) } else { self.clone() }
    }

    /// Returns the histogram of the values that were recorded after `earlier` was read. The counts
    /// must not have been reset since then.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let buckets = std::array::from_fn(|at| self.buckets[at].wrapping_sub(earlier.buckets[at]));
        Histogram { buckets, sum: self.sum.wrapping_sub(earlier.sum) }
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, bucket| sum.saturating_add(*bucket))
    }

    /// Returns each bound with the number of values that are at most this bound.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> {
        // The counts may come from another server and be arbitrary, so the addition saturates.
        let counts = self.buckets.iter().scan(0_u64, |sum, bucket| {
            *sum = sum.saturating_add(*bucket);
            Some(*sum)
        });
        BOUNDS.into_iter().zip(counts)
    }

    /// Returns those pairs of [`Histogram::cumulative`] whose bound is 1, 2 or 5 times a power of
    /// ten. These are few enough for people and for Prometheus.
    pub fn cumulative_by_few(&self) -> impl Iterator<Item = (u64, u64)> {
        self.cumulative().filter(|(bound, _)| {
            let mut leading = *bound;
            while leading >= 10 && leading.is_multiple_of(10) {
                leading /= 10;
            }
            matches!(leading, 1 | 2 | 5)
        })
    }

    /// Returns the bounds of [`Histogram::cumulative_by_few`] from `least` on.
    pub fn few_bounds(least: u64) -> impl Iterator<Item = u64> {
        let bounds: Vec<u64> =
            Histogram::default().cumulative_by_few().map(|(bound, _)| bound).collect();
        bounds.into_iter().filter(move |bound| *bound >= least)
    }

    /// Returns a count for each of the [few bounds](Histogram::few_bounds): the number of values
    /// that are at most this bound and above the bound before it. The first count has no bound
    /// before it. A last count follows, of the values above all bounds.
    pub fn counts_by_few(&self, least: u64) -> impl Iterator<Item = u64> {
        let few = self.cumulative_by_few().filter(move |(bound, _)| *bound >= least);
        let ends = few.map(|(_, cumulative)| cumulative).chain([self.count()]);
        ends.scan(0, |below, end| Some(end - std::mem::replace(below, end)))
    }

    /// Returns the value that a given share of the values does not exceed; `None` without values.
    /// As in Prometheus, the values of a bucket are assumed to be spread evenly over it. Values
    /// above the last bound are assumed to be equal to it.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let rank = share * self.count() as f64;
        let (mut below, mut lower) = (0, 0);
        for (upper, cumulative) in self.cumulative() {
            if cumulative > 0 && cumulative as f64 >= rank {
                let inside = (cumulative - below) as f64;
                let part = if inside > 0.0 { (rank - below as f64) / inside } else { 1.0 };
                return Some(lower + ((upper - lower) as f64 * part) as u64);
            }
            (below, lower) = (cumulative, upper);
        }
        (self.count() > 0).then_some(lower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_rise_from_100_ns_to_10_s() {
        assert_eq!((BOUNDS[0], BOUNDS[BOUND_COUNT - 1]), (100, 10_000_000_000));
        for pair in BOUNDS.windows(2) {
            assert!(pair[0] < pair[1] && pair[1] * 3 <= pair[0] * 5, "{pair:?}");
        }
    }

    #[test]
    fn a_value_is_in_the_first_bucket_that_holds_it() {
        let slow = |value: u64| BOUNDS.partition_point(|bound| *bound < value);
        let near = BOUNDS.iter().flat_map(|bound| [bound - 1, *bound, bound + 1]);
        let powers = (0..64).flat_map(|bit| [1 << bit, (1_u64 << bit) - 1, 5 << bit >> 2]);
        for value in near.chain(powers).chain([0, u64::MAX]) {
            assert_eq!(bucket_of(value), slow(value), "{value}");
        }
    }

    #[test]
    fn values_of_several_recorders_are_added() {
        let (own, shared) = (Recorder::default(), Recorder::default());
        own.add(150, 3);
        own.add(151, 1);
        shared.add_shared(150);
        shared.add_shared(u64::MAX);
        own.add(u64::MAX, 2);
        let mut all = shared.read();
        all.add(&own.read());
        assert_eq!((all.buckets_text(), all.count()), ("150:4 200:1 inf:3".to_owned(), 8));
        let sum = (150_u64 * 4 + 151).wrapping_add(u64::MAX).wrapping_add(u64::MAX);
        assert_eq!(all.sum, sum);
        assert_eq!(all.since(&own.read()), shared.read());
    }

    #[test]
    fn few_bounds_count_all_values_up_to_them() {
        let recorder = Recorder::default();
        for value in [90, 150, 160, 200, 201, 10_000_000_000, 10_000_000_001] {
            recorder.add(value, 1);
        }
        let few: Vec<(u64, u64)> = recorder.read().cumulative_by_few().collect();
        assert_eq!(few.len(), 3 * DECADES + 1);
        assert_eq!(few[..4], [(100, 1), (200, 4), (500, 5), (1000, 5)]);
        assert_eq!(few.last(), Some(&(10_000_000_000, 6)));
        assert!(Histogram::few_bounds(0).eq(few.iter().map(|(bound, _)| *bound)));
        let counts: Vec<u64> = recorder.read().counts_by_few(0).collect();
        assert_eq!((&counts[..4], counts.len()), (&[1, 3, 1, 0][..], few.len() + 1));
        assert_eq!(counts[few.len() - 1..], [1, 1]);
        // The argument omits the bounds below 201. So the first count has all values up to the next
        // bound, 500.
        assert_eq!(Histogram::few_bounds(201).next(), Some(500));
        assert_eq!(recorder.read().counts_by_few(201).next(), Some(5));
    }

    #[test]
    fn buckets_are_read_from_their_text() {
        let mut class = Histogram::default();
        assert_eq!(class.buckets_text(), "");
        assert_eq!(Histogram::parse(""), Some(class.clone()));
        class.buckets[0] = 7;
        class.buckets[BOUND_COUNT - 1] = u64::MAX;
        class.buckets[BOUND_COUNT] = 1;
        let text = class.buckets_text();
        assert_eq!(text, format!("100:7 10000000000:{} inf:1", u64::MAX));
        assert_eq!(Histogram::parse(&text), Some(class.clone()));
        for foreign in ["100", "101:1", "100:-1", "100:x", ":", "100:18446744073709551616"] {
            assert_eq!(Histogram::parse(foreign), None, "{foreign}");
        }
        let mut later = class.clone();
        later.buckets[0] = 10;
        assert_eq!(later.growth(&class).buckets_text(), "100:3");
        // A count has fallen. So the counts were reset in between, and all values are new.
        assert_eq!(class.growth(&later), class);
        // Counts that another server makes up must not cause a panic.
        later.add(&class);
        assert!(later.quantile(0.5).is_some());
    }

    #[test]
    fn quantiles_lie_in_the_bucket_of_their_value() {
        let recorder = Recorder::default();
        assert_eq!(recorder.read().quantile(0.5), None);
        for value in 1..=1000 {
            recorder.add(value * 1000, 1);
        }
        recorder.add(u64::MAX, 1);
        let all = recorder.read();
        for (share, exact) in [(0.01, 10), (0.5, 500), (0.9, 900), (0.99, 990)] {
            let found = all.quantile(share).unwrap() as f64 / 1000.0;
            let exact = f64::from(exact);
            assert!(found <= exact * 1.67 && exact <= found * 1.67, "{share}: {found}");
        }
        assert_eq!(all.quantile(1.0), Some(10_000_000_000));
        assert_eq!(all.quantile(0.0), Some(700));
    }
}
