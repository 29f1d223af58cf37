//! `stats detail`: how often keys with a prefix (what stands before the first delimiter) were
//! read, found, written and deleted. Off unless switched on; then every command takes a lock, as
//! it does in memcached.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// memcached's delimiter.
const DELIMITER: u8 = b':';
/// Prefixes beyond this are not counted.
const PREFIXES_MAX: usize = 65_536;

#[derive(Debug, Default)]
struct Row {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

/// What is counted by prefix.
#[derive(Debug)]
pub(crate) struct PrefixStats {
    enabled: AtomicBool,
    delimiter: u8,
    rows: Mutex<BTreeMap<Box<[u8]>, Row>>,
}

impl Default for PrefixStats {
    fn default() -> Self {
        PrefixStats::new(DELIMITER)
    }
}

impl PrefixStats {
    /// Counts nothing yet.
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

    /// A key was looked up.
    #[inline]
    pub(crate) fn get(&self, key: &[u8], hit: bool) {
        if self.is_enabled() {
            self.count(key, |row| {
                row.gets += 1;
                row.hits += u64::from(hit);
            });
        }
    }

    /// A value was to be stored.
    #[inline]
    pub(crate) fn set(&self, key: &[u8]) {
        if self.is_enabled() {
            self.count(key, |row| row.sets += 1);
        }
    }

    /// A key was to be deleted.
    #[inline]
    pub(crate) fn delete(&self, key: &[u8]) {
        if self.is_enabled() {
            self.count(key, |row| row.deletes += 1);
        }
    }

    #[cold]
    fn count(&self, key: &[u8], count: impl FnOnce(&mut Row)) {
        let Some(end) = key.iter().position(|&byte| byte == self.delimiter) else { return };
        let prefix = &key[..end];
        let mut rows = self.lock();
        if let Some(row) = rows.get_mut(prefix) {
            count(row);
        } else if rows.len() < PREFIXES_MAX {
            count(rows.entry(prefix.into()).or_default());
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// The reply to `stats detail dump`.
    pub(crate) fn dump(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (prefix, row) in self.lock().iter() {
            out.extend_from_slice(b"PREFIX ");
            out.extend_from_slice(prefix);
            // Writing to a vector cannot fail.
            let _ = write!(
                out,
                " get {} hit {} set {} del {}\r\n",
                row.gets, row.hits, row.sets, row.deletes
            );
        }
        out.extend_from_slice(b"END\r\n");
        out
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Box<[u8]>, Row>> {
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
}
