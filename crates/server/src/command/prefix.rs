//! `stats detail`: counts how often keys with a prefix were read, found, written and deleted. The
//! prefix of a key is the part before its first delimiter. Counting is off by default. While it is
//! on, every counted command takes a lock, as in memcached.

use larder_protocol::reply;
use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The default delimiter between a prefix and the rest of the key, as in memcached.
const DELIMITER: u8 = b':';
/// The largest number of prefixes. Further prefixes are not counted.
const PREFIXES_MAX: usize = 65_536;
/// The largest memory of all counted prefixes, in bytes. Prefixes that would exceed this limit are
/// not counted.
const BYTES_MAX: usize = 4 << 20;
/// Approximate memory overhead of a counted prefix, in bytes, without the prefix itself.
const ROW: usize = size_of::<(Box<[u8]>, PrefixRow)>() * 3 / 2 + 16;

#[derive(Debug, Default)]
struct PrefixRow {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

/// The counters per prefix.
#[derive(Debug)]
pub(crate) struct PrefixStats {
    enabled: AtomicBool,
    delimiter: u8,
    rows: Mutex<PrefixRows>,
}

#[derive(Debug, Default)]
struct PrefixRows {
    by_prefix: BTreeMap<Box<[u8]>, PrefixRow>,
    bytes: usize,
}

impl Default for PrefixStats {
    fn default() -> Self {
        PrefixStats::new(DELIMITER)
    }
}

impl PrefixStats {
    /// Creates the counters. Counting is off until [`enable`](Self::enable) turns it on.
    pub(crate) fn new(delimiter: u8) -> Self {
        PrefixStats { enabled: AtomicBool::new(false), delimiter, rows: Mutex::default() }
    }

    #[inline]
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.load(Relaxed)
    }

    pub(crate) fn enable(&self, enabled: bool) {
        self.enabled.store(enabled, Relaxed);
    }

    /// Counts a look-up.
    #[inline]
    pub(crate) fn get(&self, key: &[u8], hit: bool) {
        if self.is_enabled() {
            self.count(key, |row| {
                row.gets += 1;
                row.hits += u64::from(hit);
            });
        }
    }

    /// Counts an attempt to store a value.
    #[inline]
    pub(crate) fn set(&self, key: &[u8]) {
        if self.is_enabled() {
            self.count(key, |row| row.sets += 1);
        }
    }

    /// Counts an attempt to delete a key.
    #[inline]
    pub(crate) fn delete(&self, key: &[u8]) {
        if self.is_enabled() {
            self.count(key, |row| row.deletes += 1);
        }
    }

    #[cold]
    fn count(&self, key: &[u8], count: impl FnOnce(&mut PrefixRow)) {
        let Some(end) = key.iter().position(|&byte| byte == self.delimiter) else { return };
        let prefix = &key[..end];
        let mut rows = self.lock();
        if let Some(row) = rows.by_prefix.get_mut(prefix) {
            return count(row);
        }
        let bytes = rows.bytes + prefix.len() + ROW;
        if rows.by_prefix.len() < PREFIXES_MAX && bytes <= BYTES_MAX {
            rows.bytes = bytes;
            count(rows.by_prefix.entry(prefix.into()).or_default());
        }
    }

    pub(crate) fn clear(&self) {
        *self.lock() = PrefixRows::default();
    }

    /// Returns the reply to `stats detail dump`.
    pub(crate) fn dump(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.dump_behind(None, |line| {
            out.extend_from_slice(line);
            true
        });
        out.extend_from_slice(reply::END.as_bytes());
        out
    }

    /// Calls `put` with the line of each prefix after `last`, until `put` returns false. Returns
    /// the prefix for whose line `put` returned false, or `None` if `put` never did.
    pub(crate) fn dump_behind(
        &self,
        last: Option<&[u8]>,
        mut put: impl FnMut(&[u8]) -> bool,
    ) -> Option<Box<[u8]>> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let mut line = Vec::new();
        for (prefix, row) in self.lock().by_prefix.range::<[u8], _>((from, Bound::Unbounded)) {
            let PrefixRow { gets, hits, sets, deletes } = row;
            line.clear();
            line.extend_from_slice(b"PREFIX ");
            line.extend_from_slice(prefix);
            // Writing to a vector cannot fail.
            let _ = write!(line, " get {gets} hit {hits} set {sets} del {deletes}\r\n");
            if !put(&line) {
                return Some(prefix.clone());
            }
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, PrefixRows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_at_the_delimiter() {
        for (delimiter, expected) in [
            (b':', "PREFIX a get 1 hit 1 set 1 del 0\r\nPREFIX a/b get 0 hit 0 set 0 del 1\r\n"),
            (b'/', "PREFIX a get 0 hit 0 set 0 del 1\r\nPREFIX a:b get 1 hit 1 set 1 del 0\r\n"),
        ] {
            let stats = PrefixStats::new(delimiter);
            stats.set(b"off:1");
            stats.enable(true);
            stats.set(b"a:b/c");
            stats.get(b"a:b/c", true);
            stats.delete(b"a/b:c");
            stats.get(b"none", false);
            assert_eq!(String::from_utf8(stats.dump()).unwrap(), format!("{expected}END\r\n"));
        }
    }

    #[test]
    fn long_prefixes_take_bounded_memory() {
        let stats = PrefixStats::new(b':');
        stats.enable(true);
        for n in 0..100_000 {
            stats.set(format!("{n:0240}:x").as_bytes());
        }
        let rows = stats.lock();
        let bytes: usize = rows.by_prefix.keys().map(|prefix| prefix.len()).sum();
        assert!(rows.bytes <= BYTES_MAX && (BYTES_MAX / 2..BYTES_MAX).contains(&bytes));
    }

    #[test]
    fn an_interrupted_dump_continues_after_its_last_line() {
        let stats = PrefixStats::new(b':');
        stats.enable(true);
        (0..100).for_each(|n| stats.set(format!("{n}:x").as_bytes()));
        let (mut parts, mut last) = (Vec::new(), None);
        loop {
            let mut lines = 0;
            last = stats.dump_behind(last.as_deref(), |line| {
                parts.extend_from_slice(line);
                lines += 1;
                lines < 7
            });
            if last.is_none() {
                break;
            }
        }
        assert_eq!([&parts[..], b"END\r\n"].concat(), stats.dump());
    }
}
