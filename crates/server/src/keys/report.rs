//! The report of the keys, as the admin port shows it: estimates with their errors.
//!
//! All errors are two standard deviations of the sampling. If a share p of n sampled items has a
//! prefix, the error of p is 2·√(p(1-p)/n). In this formula, p is computed with four additional
//! samples, two of which have the prefix (A. Agresti and B. Coull, 1998). So a share of 0 or 1 has
//! an error too. The samples and the server's number of items include expired items that were not
//! removed yet. The counts of the items of a prefix do not include expired items.

use larder_engine::Engine;
use serde::Serialize;

use super::aged::HALF_LIFE;
use super::hot::{HotCopy, HotKeys};
use super::item_sampling::{ItemSamples, ItemSampling};
use super::sketch::SketchEntry;
use super::tree::{Node, Sums, tree};
use crate::admin::escape::escape;

/// The largest number of hot keys.
const HOT: usize = 50;
/// The least number of samples of a hot key. With fewer, the error exceeds the estimate.
const LEAST: f64 = 4.0;

/// The report.
#[derive(Debug, Serialize)]
pub(crate) struct KeyReport {
    /// Milliseconds since the Unix epoch.
    time: u64,
    /// False if keys are not sampled. All fields of `parts` are then absent.
    on: bool,
    #[serde(flatten)]
    parts: Option<KeyReportParts>,
}

#[derive(Debug, Serialize)]
struct KeyReportParts {
    delimiter: String,
    half_life_seconds: f64,
    requests: Requests,
    hot: Vec<HotKey>,
    items: Items,
    prefixes: PrefixReport,
    large: Vec<Large>,
}

/// How the requests were sampled.
#[derive(Debug, Serialize)]
struct Requests {
    /// The mean number of keys per sample.
    interval: u32,
    samples: usize,
    /// Length of the time in which the samples were taken.
    seconds: f64,
    lost: u64,
}

/// How the items were sampled.
#[derive(Debug, Serialize)]
struct Items {
    /// Number of items in the server, including expired items that were not removed yet.
    total: u64,
    samples: usize,
    /// Number of samples of expired items that were not removed yet.
    expired: usize,
    /// Length of the time in which the samples were taken.
    seconds: f64,
    /// The number of live items seen since the [`ItemSampling`] began to sample items.
    seen: u64,
    unreadable: u64,
}

#[derive(Debug, Serialize)]
struct HotKey {
    key: String,
    reads_per_second: f64,
    writes_per_second: f64,
    bytes_per_second: f64,
    /// The error of the sum of reads and writes per second.
    error: f64,
    /// Upper bound of the requests per second that the rates of this key may lack, because these
    /// requests came before the key entered the sketch.
    missing: f64,
}

#[derive(Debug, Serialize)]
struct PrefixReport {
    prefix: String,
    #[serde(flatten)]
    estimate: Estimate,
    /// The estimate for the keys that have none of the prefixes in `children`; `None` if `children`
    /// is empty.
    rest: Option<Estimate>,
    children: Vec<PrefixReport>,
}

/// Estimates for a set of keys. The estimates for items are `None` before the first sample of
/// items.
#[derive(Debug, Serialize)]
struct Estimate {
    items: Option<f64>,
    items_error: Option<f64>,
    bytes: Option<f64>,
    bytes_error: Option<f64>,
    /// The share of items that have an expiry time.
    expiring: Option<f64>,
    /// The mean time to live of the items that have an expiry time.
    ttl_seconds: Option<f64>,
    reads_per_second: f64,
    writes_per_second: f64,
    /// The error of the sum of reads and writes per second.
    requests_error: f64,
    /// The share of hits among the reads whose replies tell whether an item was found.
    hit_ratio: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Large {
    key: String,
    bytes: usize,
    seconds_ago: u64,
}

/// Makes the report. The [`ItemSampling`] samples items only while reports are requested, so this
/// call makes it continue.
pub(crate) fn report(
    hot: &HotKeys,
    sampling: &ItemSampling,
    engine: &Engine,
    now_ms: u64,
) -> KeyReport {
    let parts = hot.copy(now_ms).map(|copy| parts(hot, sampling, engine, now_ms, copy));
    KeyReport { time: now_ms, on: parts.is_some(), parts }
}

fn parts(
    hot: &HotKeys,
    sampling: &ItemSampling,
    engine: &Engine,
    now_ms: u64,
    mut copy: HotCopy,
) -> KeyReportParts {
    let samples = sampling.look(now_ms);
    let mut samples = samples.unwrap_or_else(|| ItemSamples::new(now_ms));
    let items = engine.stats().items;
    let scale = Scale {
        total: items as f64,
        all: samples.window.len() as f64,
        seconds: copy.window.seconds(now_ms),
    };
    let root = tree(hot.prefixes(), &mut samples.window, &mut copy.window);
    let live = usize::try_from(root.sums.items).unwrap_or(usize::MAX);
    KeyReportParts {
        delimiter: char::from(hot.prefixes().delimiter).to_string(),
        half_life_seconds: HALF_LIFE,
        requests: Requests {
            interval: copy.interval,
            samples: copy.window.len(),
            seconds: scale.seconds,
            lost: copy.lost,
        },
        hot: hot_keys(&copy),
        items: Items {
            total: items,
            samples: samples.window.len(),
            expired: samples.window.len().saturating_sub(live),
            seconds: samples.window.seconds(now_ms),
            seen: samples.seen,
            unreadable: samples.unreadable,
        },
        prefixes: scale.prefix(&root),
        large: samples
            .large
            .iter()
            .map(|large| Large {
                key: escape(&large.key),
                bytes: large.bytes,
                seconds_ago: now_ms.saturating_sub(large.seen_ms) / 1000,
            })
            .collect(),
    }
}

/// Returns the hottest keys, the hottest first.
fn hot_keys(copy: &HotCopy) -> Vec<HotKey> {
    let seconds = copy.seconds;
    let requests = |entry: &SketchEntry| entry.reads + entry.writes;
    // With n samples of equal weight, the square of the sum of the weights is n times the sum of
    // their squares. So the first condition requires n ≥ `LEAST`. Ageing does not change the
    // quotient of these two numbers, so keys that are no longer used still meet the first
    // condition. The second condition removes them, because they soon weigh less than one new
    // sample.
    let is_sure = |entry: &&SketchEntry| {
        requests(entry).powi(2) >= LEAST * entry.variance
            && requests(entry) >= f64::from(copy.interval)
    };
    let mut hot: Vec<&SketchEntry> =
        copy.entries.iter().filter(|entry| entry.variance > 0.0).filter(is_sure).collect();
    hot.sort_by(|one, other| requests(other).total_cmp(&requests(one)));
    let shown = hot.into_iter().take(HOT).map(|entry| HotKey {
        key: escape(entry.key()),
        reads_per_second: entry.reads / seconds,
        writes_per_second: entry.writes / seconds,
        bytes_per_second: entry.bytes / seconds,
        error: 2.0 * entry.variance.sqrt() / seconds,
        missing: entry.error / seconds,
    });
    shown.collect()
}

/// The numbers that turn sums over samples into estimates.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// The number of items in the server, including expired items that were not removed yet.
    total: f64,
    /// The number of sampled items, including expired items that were not removed yet.
    all: f64,
    /// The time in which the requests were sampled, in seconds.
    seconds: f64,
}

impl Scale {
    fn prefix(&self, node: &Node) -> PrefixReport {
        PrefixReport {
            prefix: escape(&node.prefix),
            estimate: self.estimate(&node.sums),
            rest: (!node.children.is_empty()).then(|| self.estimate(&node.rest)),
            children: node.children.iter().map(|child| self.prefix(child)).collect(),
        }
    }

    fn estimate(&self, sums: &Sums) -> Estimate {
        let any = |value: f64| (self.all > 0.0).then_some(value);
        let ratio = |part: f64, of: f64| (of > 0.0).then(|| part / of);
        let items = f64::from(sums.items);
        let share = (items + 2.0) / (self.all + 4.0);
        let (mean, square) = (sums.bytes / self.all, sums.bytes_squared / self.all);
        let variance = (square - mean * mean).max(0.0);
        let told = sums.hits + sums.misses;
        let reads = told + sums.untold;
        Estimate {
            items: any(items / self.all * self.total),
            items_error: any(2.0 * (share * (1.0 - share) / self.all).sqrt() * self.total),
            bytes: any(mean * self.total),
            bytes_error: any(2.0 * (variance / self.all).sqrt() * self.total),
            expiring: ratio(sums.expiring.into(), items),
            ttl_seconds: ratio(sums.ttl, sums.expiring.into()),
            reads_per_second: reads / self.seconds,
            writes_per_second: sums.writes / self.seconds,
            requests_error: 2.0 * sums.weights_squared.max(0.0).sqrt() / self.seconds,
            hit_ratio: ratio(sums.hits, told),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Prefixes;
    use crate::keys::hot::{RequestKind, SeenRequest};
    use crate::keys::item_sampling::ItemSample;
    use crate::keys::window::Window;
    use larder_disk::Random;

    /// Draws samples of items, of which a known share has a prefix, and estimates the items and
    /// bytes of this prefix. About 5 % of the estimates may differ from the truth by more than
    /// their error, which is two standard deviations.
    #[test]
    fn estimates_are_within_their_error_as_often_as_stated() {
        let mut random = Random::new(5);
        let (total, all) = (1_000_000.0, 2000);
        for percent in [1, 20, 50, 97] {
            let (mut wrong_items, mut wrong_bytes) = (0, 0);
            for _ in 0..500 {
                let mut sums = Sums::default();
                for _ in 0..all {
                    // Half of the items are ten times as large as the other half.
                    if random.chance(percent) {
                        let bytes = if random.chance(50) { 1000.0 } else { 100.0 };
                        sums.items += 1;
                        sums.bytes += bytes;
                        sums.bytes_squared += bytes * bytes;
                    }
                }
                let scale = Scale { total, all: f64::from(all), seconds: 1.0 };
                let estimate = scale.estimate(&sums);
                let items = total * percent as f64 / 100.0;
                let off = (estimate.items.unwrap() - items).abs();
                wrong_items += u32::from(off > estimate.items_error.unwrap());
                let off = (estimate.bytes.unwrap() - items * 550.0).abs();
                wrong_bytes += u32::from(off > estimate.bytes_error.unwrap());
            }
            // Of normally distributed estimates, 4.6 % are off by more than two standard
            // deviations: 23 of 500, with a standard deviation of 4.7.
            assert!(wrong_items < 45, "{percent} %: {wrong_items} of 500");
            assert!((2..60).contains(&wrong_bytes), "{percent} %: {wrong_bytes} of 500");
        }
    }

    /// Of one million items, a third has expired but was not removed yet. The estimates must not
    /// include these expired items.
    #[test]
    fn expired_items_are_no_items() {
        let mut random = Random::new(9);
        let mut wrong = 0;
        for _ in 0..200 {
            let mut samples = ItemSamples::new(0);
            for _ in 0..3000 {
                let item = ItemSample { bytes: 100, ttl: None };
                let (name, item): (&[u8], _) = match random.below(3) {
                    0 => (b"", None),
                    1 => (b"a:", Some(item)),
                    _ => (b"b:", Some(item)),
                };
                samples.window.push(1, name, item);
            }
            let root = tree(Prefixes::default(), &mut samples.window, &mut Window::new(0));
            let all = samples.window.len() as f64;
            let scale = Scale { total: 1_000_000.0, all, seconds: 1.0 };
            for (node, items) in [(&root, 666_667.0), (&root.children[0], 333_333.0)] {
                let estimate = scale.estimate(&node.sums);
                let off = (estimate.items.unwrap() - items).abs();
                wrong += u32::from(off > estimate.items_error.unwrap());
                let off = (estimate.bytes.unwrap() - 100.0 * items).abs();
                wrong += u32::from(off > estimate.bytes_error.unwrap());
            }
        }
        // Of normally distributed estimates, 4.6 % are off by more than two standard deviations: 36
        // of 800.
        assert!((10..75).contains(&wrong), "{wrong} of 800");
    }

    #[test]
    fn a_key_that_is_no_longer_used_leaves_the_hot_list() {
        let hot = HotKeys::default();
        hot.set_on(true);
        hot.beat(0);
        let mut now_ms = 0;
        let mut second = |per_second: u64, key: &[u8]| {
            let weight = hot.interval();
            for _ in 0..per_second / u64::from(weight) {
                let (kind, bytes) = (RequestKind::OutcomeUnknown, 0);
                hot.take(&SeenRequest { key, kind, bytes, weight, time_ms: now_ms });
            }
            now_ms += 1000;
            hot.beat(now_ms);
            let copy = hot.copy(now_ms).unwrap();
            let names = hot_keys(&copy).into_iter().map(|key| key.key);
            names.collect::<Vec<_>>()
        };
        for _ in 0..100 {
            second(1_000_000, b"busy");
        }
        second(100, b"quiet");
        assert_eq!(second(100, b"quiet"), ["busy", "quiet"]);
        let mut seconds = 0;
        while second(100, b"quiet").contains(&"busy".to_owned()) {
            seconds += 1;
            assert!(seconds < 900, "busy is still listed");
        }
        assert!(seconds > 60, "{seconds}");
        assert_eq!(second(100, b"quiet"), ["quiet"]);
    }

    #[test]
    fn errors_leave_the_hit_ratio_alone() {
        let scale = Scale { total: 10.0, all: 0.0, seconds: 2.0 };
        let sums = Sums { hits: 3.0, misses: 1.0, untold: 8.0, ..Sums::default() };
        let estimate = scale.estimate(&sums);
        assert_eq!((estimate.hit_ratio, estimate.reads_per_second), (Some(0.75), 6.0));
    }

    #[test]
    fn nothing_is_estimated_from_nothing() {
        let scale = Scale { total: 10.0, all: 0.0, seconds: 1.0 };
        let estimate = scale.estimate(&Sums::default());
        assert_eq!((estimate.items, estimate.bytes_error, estimate.hit_ratio), (None, None, None));
        assert_eq!((estimate.reads_per_second, estimate.requests_error), (0.0, 0.0));
    }
}
