//! Rate limiters are evicted last, because an evicted limiter gives its client the whole budget
//! again. But limiters may not fill the memory, and writers must not wait while the cleaner copies
//! many limiters. So two limits apply: to the memory of all limiters, and to the limiters that are
//! kept in a row. Beyond either limit, limiters are evicted like other items.

use larder_log::Record;
use larder_log::record::Kind;

/// The share of the memory that limiters may take: 1/`SHARE`.
const SHARE: u64 = 2;
/// The largest number of bytes of limiters that are kept in a row before an eviction frees memory:
/// 1/`ROW_SHARE` of the memory, but at most `ROW_MAX`.
const ROW_SHARE: u64 = 8;
const ROW_MAX: u64 = 256 << 20;
/// Bytes of limiters that may be kept for each byte evicted.
const KEPT_PER_EVICTED: u64 = 4;

/// Counts of the live records that the cleaner lately considered for eviction.
#[derive(Debug, Default)]
pub(super) struct LimiterShare {
    /// Bytes of the considered records, over about one cycle through the memory.
    all: u64,
    /// Bytes of the limiters among the records that `all` counts.
    limiters: u64,
    /// Bytes of the limiters considered so far, minus `KEPT_PER_EVICTED` bytes for each byte
    /// evicted; never below 0.
    row: u64,
}

impl LimiterShare {
    /// Counts a live record that could be evicted. Returns true if it is a limiter to be kept.
    /// `memory` is the lane's memory in bytes.
    pub(super) fn keeps(&mut self, record: &Record<'_>, memory: u64) -> bool {
        let size = record.size() as u64;
        if self.all > memory {
            self.all /= 2;
            self.limiters /= 2;
        }
        self.all += size;
        if record.kind() != Kind::Limiter {
            return false;
        }
        self.limiters += size;
        self.row += size;
        self.limiters <= memory / SHARE && self.row <= (memory / ROW_SHARE).min(ROW_MAX)
    }

    /// Notes that a record was evicted.
    pub(super) fn evicted(&mut self, record: &Record<'_>) {
        self.row = self.row.saturating_sub(record.size() as u64 * KEPT_PER_EVICTED);
    }
}
