//! Rate limiters are evicted last, because an evicted limiter gives its client all units of the
//! rate limit again. Two limits apply. Limiters may take at most a share of the memory, so that
//! they cannot fill it. And only a limited number of bytes of limiters may be copied while nothing
//! is evicted, because writers wait for memory meanwhile. Beyond either limit, limiters are evicted
//! like other items.

use larder_log::Record;
use larder_log::record::Kind;

/// The share of the memory that limiters may take: 1/`SHARE`.
const SHARE: u64 = 2;
/// Limiters are kept while `LimiterShare::row` is at most 1/`ROW_SHARE` of the memory and at most
/// `ROW_MAX` bytes.
const ROW_SHARE: u64 = 8;
const ROW_MAX: u64 = 256 << 20;
/// Each evicted byte lowers `LimiterShare::row` by this number of bytes.
const KEPT_PER_EVICTED: u64 = 4;

/// Counts of the live records that the cleaner lately considered for eviction.
#[derive(Debug, Default)]
pub(super) struct LimiterShare {
    /// Bytes of the considered records. When `all` exceeds the lane's memory, `all` and `limiters`
    /// are halved, so that old records count less.
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
