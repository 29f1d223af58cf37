//! Which version of each key is the newest: a table that recovery fills with all that it reads, and
//! from which it then fills the index.
//!
//! Keys are told apart by 96 bits of their hash, so no record is read a second time to compare keys:
//! with 64 bits two of 10⁹ keys would collide in one store of 37, with 96 in one of 10¹¹. The table is
//! cut into shards by the hash's first bits, and inside of a shard entries lie in the order of the
//! hash but for collisions: it grows by one pass in order, and the index is filled stripe by stripe.
//!
//! If the table reaches its limit, so many shards are forgotten that the rest should have room until
//! the end of the pass; they are read in a further pass over the log, and so on. So a store may hold
//! many more keys than memory has room to decide about at once.

use crate::lane::lock;
use larder_log::format::KeyHash;
use larder_log::{Address, Budget, Rule, SegmentNumber};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const SHARD_BITS: u32 = 8;
/// Shards of the table: small enough that one fits into a processor's cache while it is filled.
const SHARDS: usize = 1 << SHARD_BITS;
/// Versions that a thread collects for a shard before it enters them together.
const GATHERED: usize = 64;
/// Entries of a shard that begins.
const SMALLEST: usize = 128;
/// All of the log, in the parts in which it is counted how much was read.
const READ_ALL: usize = 256;
/// A record's size is kept in units of this many bytes.
const GRANULE: usize = 8;

/// A version of a key, and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) seq: u64,
    pub(super) address: Address,
    /// Bytes of its record; 0 of one with a segment of its own.
    pub(super) size: usize,
    /// Whether clients see it. If not, it only hides older versions.
    pub(super) shown: bool,
}

impl Version {
    /// Whether this version counts, and not the `other` of the same key.
    fn supersedes(&self, other: &Version) -> bool {
        if Rule::SeqDecides.is_broken() {
            return self.address.bits() > other.address.bits();
        }
        // Of two with the same seq one is the cleaner's copy, which counts if the other is marked.
        let rank = |version: &Version| (version.seq, version.shown, version.address.bits());
        rank(self) > rank(other)
    }
}

/// A version in the table. All zero: none, for there is no segment 0.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
struct Entry {
    /// The key's hash.
    lo: u64,
    /// Address (44 bits) and size.
    place: u64,
    /// Seq (48 bits), and on top whether it is shown.
    seq: u64,
    /// More of the hash.
    hi: u32,
}

const _: () = assert!(size_of::<Entry>() == 28);

impl Entry {
    const NONE: Entry = Entry { lo: 0, place: 0, seq: 0, hi: 0 };
    const SHOWN: u64 = 1 << 63;

    fn new(key: KeyHash, version: Version) -> Self {
        let size = (version.size / GRANULE) as u64;
        Entry {
            lo: key.lo,
            place: version.address.bits() | size << Address::BITS,
            seq: version.seq | if version.shown { Self::SHOWN } else { 0 },
            hi: key.hi,
        }
    }

    fn is_none(&self) -> bool {
        self.place == 0
    }

    fn version(&self) -> Version {
        Version {
            seq: self.seq & !Self::SHOWN,
            address: Address::from_bits(self.place),
            size: (self.place >> Address::BITS) as usize * GRANULE,
            shown: self.seq & Self::SHOWN != 0,
        }
    }
}

/// The entries of keys whose hashes begin alike.
#[derive(Default)]
struct Shard {
    entries: Vec<Entry>,
    used: usize,
}

impl Shard {
    /// Where the key's entry is, or is to be. There is an empty one.
    fn place(&self, lo: u64, hi: u32) -> usize {
        let within = u128::from(lo << SHARD_BITS);
        let mut at = ((within * self.entries.len() as u128) >> u64::BITS) as usize;
        loop {
            let entry = self.entries[at];
            if entry.is_none() || entry.lo == lo && entry.hi == hi {
                return at;
            }
            at = if at + 1 == self.entries.len() { 0 } else { at + 1 };
        }
    }

    /// Enters a version. The answer is the older one of the two, if there was one of the key already.
    fn enter(&mut self, entry: Entry) -> Option<Version> {
        let at = self.place(entry.lo, entry.hi);
        let old = &mut self.entries[at];
        if old.is_none() {
            self.used += 1;
            *old = entry;
            return None;
        }
        let (new, known) = (entry.version(), old.version());
        if !new.supersedes(&known) {
            return Some(new);
        }
        *old = entry;
        Some(known)
    }

    /// How many entries it should have for `more` that may all be new; as many as it has, if they fit.
    fn wanted(&self, more: usize) -> usize {
        let mut len = self.entries.len().max(SMALLEST);
        while (self.used + more) * 5 > len * 4 {
            len += len / 2;
        }
        len
    }

    /// Whether `more` fit in as it is, if there is no memory for a larger one.
    fn squeezes_in(&self, more: usize) -> bool {
        (self.used + more) * 10 <= self.entries.len() * 9
    }

    fn grow(&mut self, len: usize) {
        let old = std::mem::replace(&mut self.entries, vec![Entry::NONE; len]);
        self.used = 0;
        for entry in old.into_iter().filter(|entry| !entry.is_none()) {
            self.enter(entry);
        }
    }
}

/// The table.
pub(super) struct Newest {
    shards: Box<[Mutex<Shard>]>,
    /// The shards that this pass is about. The lock is for whoever makes them fewer.
    from: AtomicUsize,
    until: AtomicUsize,
    narrowing: Mutex<()>,
    /// How much of the log this pass has read, in parts of 256.
    read: AtomicUsize,
    /// Bytes of all shards, and how many there may be.
    bytes: AtomicUsize,
    limit: AtomicUsize,
    /// Keys in all shards.
    keys: AtomicUsize,
    /// Segments in which something would be shown if nothing newer hid it, a bit each.
    superseded: Box<[AtomicU64]>,
    budget: Arc<Budget>,
}

impl Newest {
    /// An empty table that takes at most `limit` bytes or, if that is more, what one shard takes. It is
    /// for segments below `segments`.
    pub(super) fn new(limit: usize, segments: SegmentNumber, budget: &Arc<Budget>) -> Self {
        Newest {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            from: AtomicUsize::new(0),
            until: AtomicUsize::new(SHARDS),
            narrowing: Mutex::default(),
            read: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            limit: AtomicUsize::new(limit),
            keys: AtomicUsize::new(0),
            superseded: (0..=segments / u64::BITS).map(|_| AtomicU64::new(0)).collect(),
            budget: Arc::clone(budget),
        }
    }

    /// This pass has read `done` of `all`.
    pub(super) fn has_read(&self, done: usize, all: usize) {
        self.read.store((done * READ_ALL).checked_div(all).unwrap_or(0), Ordering::Relaxed);
    }

    /// Changes the limit; what is beyond it already stays until the table grows next.
    pub(super) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Bytes that the table has grown to, and keys in it.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.bytes.load(Ordering::Relaxed), self.keys.load(Ordering::Relaxed))
    }

    /// The shards that this pass is about.
    pub(super) fn part(&self) -> Range<usize> {
        self.from.load(Ordering::Relaxed)..self.until.load(Ordering::Relaxed)
    }

    /// How many there will be of what the passes up to this one have found `found` of.
    pub(super) fn expected(&self, found: usize) -> usize {
        found * SHARDS / self.part().end.max(1)
    }

    /// How many passes such as this one it takes to look at all keys.
    pub(super) fn passes(&self) -> usize {
        SHARDS.div_ceil(self.part().len())
    }

    /// How many such passes it takes from this one on, this one included.
    pub(super) fn passes_left(&self) -> usize {
        let part = self.part();
        (SHARDS - part.start).div_ceil(part.len())
    }

    /// Goes on to the keys that were not looked at; false if there are none.
    pub(super) fn next_part(&self) -> bool {
        let part = self.part();
        self.forget(part.clone());
        self.from.store(part.end, Ordering::Relaxed);
        // What had room, and as much again: if that is too much it is noticed soon, and if this pass
        // had looked at too few, it is made up for.
        self.until.store((part.end + 2 * part.len()).min(SHARDS), Ordering::Relaxed);
        self.has_read(0, 1);
        part.end < SHARDS
    }

    fn forget(&self, shards: Range<usize>) {
        for shard in &self.shards[shards] {
            let shard = std::mem::take(&mut *lock(shard));
            self.keys.fetch_sub(shard.used, Ordering::Relaxed);
            let bytes = size_of_val(&shard.entries[..]);
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.budget.release(bytes as u64);
        }
    }

    /// Leaves some of the keys to another pass, unless that was done meanwhile: as many as will find
    /// no room if the rest of the log is like what was read of it.
    fn narrow(&self, seen: &Range<usize>) {
        let _one_at_a_time = lock(&self.narrowing);
        if self.part() == *seen {
            let read = self.read.load(Ordering::Relaxed).max(READ_ALL / 8);
            let len = (seen.len() * read / READ_ALL).clamp(1, seen.len() - 1);
            self.until.store(seen.start + len, Ordering::Relaxed);
            self.forget(seen.start + len..seen.end);
        }
    }

    /// Enters a version of a key at once; whether it is the newest so far, as far as this pass knows.
    pub(super) fn enter(&self, key: KeyHash, version: Version) -> bool {
        let entry = Entry::new(key, version);
        self.enter_all(shard_of(entry.lo), &[entry])
    }

    /// Whether the last one of these is the newest so far.
    fn enter_all(&self, number: usize, entries: &[Entry]) -> bool {
        loop {
            let mut shard = lock(&self.shards[number]);
            // Whoever ends the part earlier looks at this shard afterwards.
            let part = self.part();
            if !part.contains(&number) {
                return true;
            }
            let len = shard.wanted(entries.len());
            let more = (len - shard.entries.len()) * size_of::<Entry>();
            let bytes = self.bytes.load(Ordering::Relaxed) + more;
            let within = bytes <= self.limit.load(Ordering::Relaxed);
            if more > 0 && !within && !shard.squeezes_in(entries.len()) && part.len() > 1 {
                drop(shard);
                self.narrow(&part);
                continue;
            }
            if more > 0 && (within || !shard.squeezes_in(entries.len())) {
                self.bytes.fetch_add(more, Ordering::Relaxed);
                self.budget.charge(more as u64);
                shard.grow(len);
            }
            let before = shard.used;
            let mut newest = true;
            for &entry in entries {
                let older = shard.enter(entry);
                newest = older.is_none_or(|older| older.address != entry.version().address);
                if let Some(older) = older.filter(|older| older.shown) {
                    self.note_superseded(older.address.segment());
                }
            }
            self.keys.fetch_add(shard.used - before, Ordering::Relaxed);
            return newest;
        }
    }

    fn note_superseded(&self, number: SegmentNumber) {
        let (word, bit) = (number / u64::BITS, 1 << (number % u64::BITS));
        self.superseded[word as usize].fetch_or(bit, Ordering::Relaxed);
    }

    /// Whether a version in the segment was found to be superseded that no map marks.
    pub(super) fn is_superseded(&self, number: SegmentNumber) -> bool {
        let word = self.superseded[(number / u64::BITS) as usize].load(Ordering::Relaxed);
        word >> (number % u64::BITS) & 1 != 0
    }

    /// Calls `visit` for every key of a shard with the newest version of it.
    pub(super) fn visit(&self, shard: usize, mut visit: impl FnMut(KeyHash, Version)) {
        let shard = lock(&self.shards[shard]);
        for entry in shard.entries.iter().filter(|entry| !entry.is_none()) {
            visit(KeyHash { lo: entry.lo, hi: entry.hi }, entry.version());
        }
    }
}

impl Drop for Newest {
    fn drop(&mut self) {
        self.forget(0..SHARDS);
    }
}

fn shard_of(lo: u64) -> usize {
    (lo >> (u64::BITS - SHARD_BITS)) as usize
}

/// What one thread has read and not entered yet: a shard at a time is brought into its cache.
pub(super) struct Gathering<'a> {
    newest: &'a Newest,
    shards: Vec<Vec<Entry>>,
}

impl<'a> Gathering<'a> {
    pub(super) fn new(newest: &'a Newest) -> Self {
        Gathering { newest, shards: vec![Vec::new(); SHARDS] }
    }

    /// Adds a version of a key.
    pub(super) fn add(&mut self, key: KeyHash, version: Version) {
        let entry = Entry::new(key, version);
        let number = shard_of(entry.lo);
        if !self.newest.part().contains(&number) {
            return;
        }
        let shard = &mut self.shards[number];
        shard.push(entry);
        if shard.len() == GATHERED {
            self.newest.enter_all(number, shard);
            shard.clear();
        }
    }
}

impl Drop for Gathering<'_> {
    fn drop(&mut self) {
        for (number, shard) in self.shards.iter().enumerate().filter(|(_, it)| !it.is_empty()) {
            self.newest.enter_all(number, shard);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn version(seq: u64, place: usize, shown: bool) -> Version {
        Version { seq, address: Address::new(1 + place as u32 % 7, place * 8), size: 48, shown }
    }

    /// What all passes of a table of `bytes` show, and how many there were.
    fn decided(bytes: usize, all: &[(u32, Version)]) -> (HashMap<u64, Version>, usize) {
        let budget = Arc::new(Budget::new(1 << 30));
        let newest = Newest::new(bytes, 8, &budget);
        let (mut found, mut passes) = (HashMap::new(), 0);
        loop {
            passes += 1;
            let mut gathering = Gathering::new(&newest);
            for (key, version) in all {
                gathering.add(KeyHash::of(&key.to_le_bytes(), 7), *version);
            }
            drop(gathering);
            for shard in newest.part() {
                newest.visit(shard, |key, version| {
                    assert_eq!(found.insert(key.lo, version), None, "a key was shown twice");
                });
            }
            if !newest.next_part() {
                break;
            }
        }
        drop(newest);
        assert_eq!(budget.used(), 0);
        (found, passes)
    }

    fn newest_of(all: &[(u32, Version)]) -> HashMap<u64, Version> {
        let mut newest = HashMap::<u64, Version>::new();
        for (key, version) in all {
            let key = KeyHash::of(&key.to_le_bytes(), 7).lo;
            let best = newest.entry(key).or_insert(*version);
            if (version.seq, version.shown, version.address.bits())
                > (best.seq, best.shown, best.address.bits())
            {
                *best = *version;
            }
        }
        newest
    }

    #[test]
    fn what_memory_does_not_hold_is_decided_in_further_passes() {
        let all: Vec<(u32, Version)> = (0..100_000)
            .map(|n: u32| (n % 60_000, version(u64::from(n) * 7919 % 100_003, n as usize, true)))
            .collect();
        let (found, passes) = decided(8 << 20, &all);
        assert_eq!((found, passes), (newest_of(&all), 1));
        let (found, passes) = decided(1 << 20, &all);
        assert_eq!(found, newest_of(&all));
        assert!(passes > 1, "{passes}");
    }

    #[test]
    fn a_copy_counts_if_the_original_is_marked_whatever_comes_first() {
        for all in [[true, false], [false, true]] {
            let all = all.map(|shown| (1, version(5, usize::from(shown), shown)));
            let (found, _) = decided(0, &all);
            assert!(found.into_values().all(|version| version.shown));
        }
    }

    proptest! {
        #[test]
        fn the_newest_of_each_key_is_shown_whatever_the_limit(
            all in prop::collection::vec((0..500u32, 1..40u64, 0..1000usize, any::<bool>()), 0..2000),
            bytes in 0..200_000usize,
        ) {
            let all: Vec<(u32, Version)> =
                all.into_iter().map(|(key, seq, at, shown)| (key, version(seq, at, shown))).collect();
            prop_assert_eq!(decided(bytes, &all).0, newest_of(&all));
        }
    }
}
