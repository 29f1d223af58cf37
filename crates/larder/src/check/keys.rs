//! Counts the live items of a store in bounded memory. When there are more than [`KEYS_MAX`] keys,
//! about half of them are dropped and the counts become estimates. The hash of a key decides
//! whether it is dropped, so either all versions of a key are counted or none.

use std::collections::HashMap;

/// The largest number of keys in memory.
const KEYS_MAX: usize = 4 << 20;

/// The newest version of a key.
#[derive(Clone, Copy, Debug)]
struct Newest {
    seq: u64,
    /// Bytes of the record. 0 if the version is dead: a get of the key would then miss.
    alive: u64,
}

/// The newest version of each key, or of a sample of them.
#[derive(Debug)]
pub(super) struct Keys {
    newest: HashMap<u64, Newest>,
    /// Only keys whose hashes end in `shift` zero bits are kept; the counts are multiplied by
    /// 2^`shift`.
    shift: u32,
    most: usize,
}

/// The number and size of live items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Alive {
    pub(super) items: u64,
    pub(super) bytes: u64,
    pub(super) estimated: bool,
}

impl Keys {
    pub(super) fn new() -> Keys {
        Keys::with_most(KEYS_MAX)
    }

    fn with_most(most: usize) -> Keys {
        Keys { newest: HashMap::new(), shift: 0, most }
    }

    /// Adds a version of the key with this hash. `alive` is its size in bytes, or 0 if the version
    /// is dead. Versions with the same seq are copies of one record. A dead mark applies to one
    /// copy only, so a version is alive if any of its copies is alive.
    pub(super) fn note(&mut self, hash: u64, seq: u64, alive: u64) {
        if !self.holds(hash) {
            return;
        }
        let newest = self.newest.entry(hash).or_insert(Newest { seq, alive });
        if (newest.seq, newest.alive) < (seq, alive) {
            *newest = Newest { seq, alive };
        }
        while self.newest.len() > self.most {
            self.shift += 1;
            let shift = self.shift;
            self.newest.retain(|hash, _| hash.trailing_zeros() >= shift);
        }
    }

    fn holds(&self, hash: u64) -> bool {
        hash.trailing_zeros() >= self.shift
    }

    pub(super) fn alive(&self) -> Alive {
        let living = self.newest.values().filter(|newest| newest.alive > 0);
        let (items, bytes) =
            living.fold((0, 0), |(items, bytes), newest| (items + 1, bytes + newest.alive));
        Alive { items: items << self.shift, bytes: bytes << self.shift, estimated: self.shift > 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_disk::Random;

    /// Spreads small numbers over all bits.
    fn hash(n: u64) -> u64 {
        Random::new(n).bits()
    }

    #[test]
    fn the_newest_version_counts_in_any_order() {
        let mut keys = Keys::new();
        for (key, seq, alive) in [(1, 5, 80), (1, 7, 0), (1, 6, 90), (2, 2, 40), (2, 1, 50)] {
            keys.note(hash(key), seq, alive);
        }
        // The cleaner moved a record and marked the original dead. The record must count as alive,
        // whether the dead original is noted before or after the moved record.
        keys.note(hash(3), 9, 0);
        keys.note(hash(3), 9, 64);
        keys.note(hash(3), 9, 0);
        assert_eq!(keys.alive(), Alive { items: 2, bytes: 104, estimated: false });
    }

    #[test]
    fn counts_of_a_sample_estimate_those_of_all_keys() {
        let mut keys = Keys::with_most(4096);
        for version in 0..2 {
            for key in 0..100_000 {
                // Every fourth key is deleted.
                let alive = if version == 1 && key % 4 == 0 { 0 } else { 100 };
                keys.note(hash(key), version, alive);
            }
        }
        let alive = keys.alive();
        assert!(alive.estimated && keys.newest.len() <= 4096);
        assert!(alive.items.abs_diff(75_000) < 5_000, "{alive:?}");
        assert_eq!(alive.bytes, alive.items * 100);
    }
}
