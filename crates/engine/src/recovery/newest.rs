//! A table of the newest version of each key. Recovery fills it with everything it reads, and then
//! fills the index from it.
//!
//! Keys are identified by 96 bits of their hash, so no record is read a second time to compare
//! keys. In a store of 10⁹ keys, the probability that any two have the same 96 bits is about 10⁻¹¹;
//! with 64 bits it would be 1/37. The table is split into shards by the hash's first bits, so that
//! one shard fits into a processor's cache. Versions are appended to their shard. A full shard
//! *decides*: it reads its entries in order, keeps the newest version of each key, and doubles its
//! capacity if that leaves too little room. Because of the doubling, an entry is usually read only
//! a few times. A decision's random accesses concern one shard, so they stay in the cache. The
//! index is filled shard by shard, so its tables are in the cache, too.
//!
//! If the table reaches its limit, it drops enough shards that the rest should have room until the
//! end of the pass. The dropped shards are read in a further pass over the log, and so on. So a
//! store may hold many more keys than memory has room to decide at once.

use crate::lock::lock;
use larder_log::format::KeyHash;
use larder_log::{Address, Budget, Rule, SegmentNumber};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The smallest and largest number of hash bits that choose the shard.
const SHARD_BITS: (u32, u32) = (8, 11);
/// Approximate number of entries of a shard at the end of a pass, if records have [`RECORD_BYTES`]
/// bytes.
const SHARD_ENTRIES: u64 = 1 << 14;
/// Assumed bytes of a record, for the number of shards.
const RECORD_BYTES: u64 = 64;
/// The table has at most one shard per this many bytes of its limit, but never fewer than
/// `SHARD_BITS` says.
const SHARD_BYTES: usize = 64 << 10;
/// Number of versions that a thread collects for a shard before it enters them together.
const GATHERED: usize = 32;
/// Initial capacity of a shard, in entries.
const SMALLEST: usize = 128;
/// Reading progress is counted in units of 1/`READ_ALL` of the log.
const READ_ALL: usize = 256;
/// Record sizes are stored in units of this many bytes.
const GRANULE: usize = 8;

/// A version of a key and its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) seq: u64,
    pub(super) address: Address,
    /// Bytes of the record; 0 for a jumbo.
    pub(super) size: usize,
    /// True if clients see this version. Otherwise the version only hides older versions.
    pub(super) shown: bool,
}

impl Version {
    /// Returns true if this version replaces the `other` one of the same key.
    pub(super) fn supersedes(&self, other: &Version) -> bool {
        if Rule::SeqDecides.is_broken() {
            return self.address.bits() > other.address.bits();
        }
        // If the cleaner has moved an item, two records of the item have the same seq. If one of
        // them is marked dead, the other one wins.
        let rank = |version: &Version| (version.seq, version.shown, version.address.bits());
        rank(self) > rank(other)
    }
}

/// A version in the table.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
struct Entry {
    /// The low half of the key's hash.
    lo: u64,
    /// Address (43 bits) and size.
    place: u64,
    /// Seq (48 bits); the top bit is set if the version is shown.
    seq: u64,
    /// 32 further bits of the key's hash.
    hi: u32,
}

const _: () = assert!(size_of::<Entry>() == 28);

impl Entry {
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

    fn version(&self) -> Version {
        Version {
            seq: self.seq & !Self::SHOWN,
            address: Address::from_bits(self.place),
            size: (self.place >> Address::BITS) as usize * GRANULE,
            shown: self.seq & Self::SHOWN != 0,
        }
    }
}

/// The entries of keys whose hashes start with the same bits.
#[derive(Default)]
struct KeyShard {
    /// The entries in order of arrival. Their capacity is charged to the budget.
    entries: Vec<Entry>,
    /// Number of entries at the front that are known to have different keys.
    decided: usize,
}

impl KeyShard {
    /// Keeps the newest version of each key and calls `superseded` with each of the others.
    /// `places` is scratch memory that is reused.
    fn decide(&mut self, places: &mut Vec<u32>, mut superseded: impl FnMut(Version)) {
        const NONE: u32 = u32::MAX;
        let KeyShard { entries, decided } = self;
        if *decided == entries.len() {
            return;
        }
        // A hash table of indexes into `entries`. It uses the low bits of the key's hash, because
        // the high bits are the same in the whole shard.
        let len = (entries.len() * 2).next_power_of_two();
        places.clear();
        places.resize(len, NONE);
        let mut kept = 0;
        for at in 0..entries.len() {
            let entry = entries[at];
            let mut place = entry.lo as usize & (len - 1);
            loop {
                let known = places[place];
                if known == NONE {
                    places[place] = kept as u32;
                    entries[kept] = entry;
                    kept += 1;
                    break;
                }
                let known = &mut entries[known as usize];
                if known.lo == entry.lo && known.hi == entry.hi {
                    let (new, old) = (entry.version(), known.version());
                    if new.supersedes(&old) {
                        *known = entry;
                        superseded(old);
                    } else if new != old {
                        superseded(new);
                    }
                    break;
                }
                place = (place + 1) & (len - 1);
            }
        }
        entries.truncate(kept);
        *decided = kept;
    }

    /// Returns true if `more` entries fit without growing.
    fn has_room(&self, more: usize) -> bool {
        self.entries.len() + more <= self.entries.capacity()
    }

    /// Returns the capacity that the shard should have before `more` entries are added. This is the
    /// present capacity if the shard is then at most three quarters full; otherwise it is at least
    /// twice as large.
    fn wanted(&self, more: usize) -> usize {
        let capacity = self.entries.capacity();
        let needed = self.entries.len() + more;
        if needed * 4 <= capacity * 3 { capacity } else { (capacity * 2).max(needed).max(SMALLEST) }
    }
}

/// The table of the newest version of each key.
pub(super) struct Newest {
    shard_bits: u32,
    shards: Box<[Mutex<KeyShard>]>,
    /// The range of shards that this pass decides. The lock serializes threads that shorten the
    /// range.
    from: AtomicUsize,
    until: AtomicUsize,
    narrowing: Mutex<()>,
    /// How much of the log this pass has read, in units of 1/[`READ_ALL`].
    read: AtomicUsize,
    /// Bytes of all shards, and their limit.
    bytes: AtomicUsize,
    limit: AtomicUsize,
    /// Number of entries in all shards.
    entries: AtomicUsize,
    /// One bit per segment: set if the segment holds a superseded item that no dead map marks.
    superseded: Box<[AtomicU64]>,
    budget: Arc<Budget>,
}

impl Newest {
    /// Creates an empty table of at most `limit` bytes. A single shard may take more than that. The
    /// table is for segments whose numbers are below `segments` and which hold `log_bytes` bytes
    /// together.
    pub(super) fn new(
        limit: usize,
        segments: SegmentNumber,
        log_bytes: u64,
        budget: &Arc<Budget>,
    ) -> Self {
        let most = (limit / SHARD_BYTES).max(1).ilog2();
        let shards = (log_bytes / RECORD_BYTES / SHARD_ENTRIES).max(1).next_power_of_two();
        let shard_bits = shards.trailing_zeros().min(most).clamp(SHARD_BITS.0, SHARD_BITS.1);
        let shards = 1 << shard_bits;
        Newest {
            shard_bits,
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            from: AtomicUsize::new(0),
            until: AtomicUsize::new(shards),
            narrowing: Mutex::default(),
            read: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            limit: AtomicUsize::new(limit),
            entries: AtomicUsize::new(0),
            superseded: (0..=segments / u64::BITS).map(|_| AtomicU64::new(0)).collect(),
            budget: Arc::clone(budget),
        }
    }

    /// Notes that this pass has read `done` of `all` segments.
    pub(super) fn has_read(&self, done: usize, all: usize) {
        self.read.store((done * READ_ALL).checked_div(all).unwrap_or(0), Ordering::Relaxed);
    }

    /// Changes the limit. Memory beyond it is kept until the table next grows.
    pub(super) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Returns the table's bytes, and an upper bound of the number of keys in it.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.bytes.load(Ordering::Relaxed), self.entries.load(Ordering::Relaxed))
    }

    /// Returns the range of shards that this pass decides.
    pub(super) fn part(&self) -> Range<usize> {
        self.from.load(Ordering::Relaxed)..self.until.load(Ordering::Relaxed)
    }

    /// Extrapolates a count, for example of items, to all passes. `found` is the count of this pass
    /// and the earlier ones.
    pub(super) fn expected(&self, found: usize) -> usize {
        found * self.shards.len() / self.part().end.max(1)
    }

    /// Returns how many passes of this pass's size decide all keys.
    pub(super) fn passes(&self) -> usize {
        self.shards.len().div_ceil(self.part().len())
    }

    /// Returns how many passes of this pass's size are left, this one included.
    pub(super) fn passes_left(&self) -> usize {
        let part = self.part();
        (self.shards.len() - part.start).div_ceil(part.len())
    }

    /// Begins the next pass, over keys not decided yet. Returns false if there are none.
    pub(super) fn next_part(&self) -> bool {
        let part = self.part();
        self.forget(part.clone());
        self.from.store(part.end, Ordering::Relaxed);
        // The next pass begins with twice as many shards as this pass had room for. If these are
        // too many, the next pass is narrowed soon. If this pass was narrowed too much, the next
        // one makes up for it.
        self.until.store((part.end + 2 * part.len()).min(self.shards.len()), Ordering::Relaxed);
        self.has_read(0, 1);
        part.end < self.shards.len()
    }

    fn forget(&self, shards: Range<usize>) {
        for shard in &self.shards[shards] {
            let shard = std::mem::take(&mut *lock(shard));
            self.entries.fetch_sub(shard.entries.len(), Ordering::Relaxed);
            let bytes = shard.entries.capacity() * size_of::<Entry>();
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.budget.release(bytes as u64);
        }
    }

    /// Shortens the range of this pass, because the table has reached its limit. Keeps the first
    /// shards that should fit if the rest of the log resembles the part already read. Discards the
    /// entries of the other shards: a later pass reads them again. `seen` is the range that the
    /// caller saw. If another thread has shortened the range since then, this call does nothing.
    fn narrow(&self, seen: &Range<usize>) {
        let _one_at_a_time = lock(&self.narrowing);
        if self.part() == *seen {
            let read = self.read.load(Ordering::Relaxed).max(READ_ALL / 8);
            let len = (seen.len() * read / READ_ALL).clamp(1, seen.len() - 1);
            self.until.store(seen.start + len, Ordering::Relaxed);
            self.forget(seen.start + len..seen.end);
        }
    }

    /// Enters a version of a key immediately, without a [`Gathering`].
    pub(super) fn enter(&self, key: KeyHash, version: Version) {
        let entry = Entry::new(key, version);
        self.enter_all(self.shard_of(entry.lo), &[entry], &mut Vec::new());
    }

    fn enter_all(&self, number: usize, entries: &[Entry], places: &mut Vec<u32>) {
        loop {
            let mut shard = lock(&self.shards[number]);
            // Another thread may shorten the range after this check. It then drops the entries of
            // the shards outside the new range, under the shards' locks. So it also drops what is
            // added here.
            let part = self.part();
            if !part.contains(&number) {
                return;
            }
            if !shard.has_room(entries.len()) {
                self.decide_shard(&mut shard, places);
                let capacity = shard.entries.capacity();
                let wanted = shard.wanted(entries.len());
                let more = (wanted - capacity) * size_of::<Entry>();
                let bytes = self.bytes.load(Ordering::Relaxed) + more;
                let within = bytes <= self.limit.load(Ordering::Relaxed);
                if more > 0 && !within && !shard.has_room(entries.len()) && part.len() > 1 {
                    drop(shard);
                    self.narrow(&part);
                    continue;
                }
                if more > 0 && (within || !shard.has_room(entries.len())) {
                    self.bytes.fetch_add(more, Ordering::Relaxed);
                    self.budget.charge(more as u64);
                    let len = shard.entries.len();
                    shard.entries.reserve_exact(wanted - len);
                    debug_assert_eq!(shard.entries.capacity(), wanted);
                }
            }
            shard.entries.extend_from_slice(entries);
            self.entries.fetch_add(entries.len(), Ordering::Relaxed);
            return;
        }
    }

    fn decide_shard(&self, shard: &mut KeyShard, places: &mut Vec<u32>) {
        let before = shard.entries.len();
        shard.decide(places, |version| self.note_superseded(&version));
        self.entries.fetch_sub(before - shard.entries.len(), Ordering::Relaxed);
    }

    /// Notes that a newer version of this version's key was found.
    pub(super) fn note_superseded(&self, version: &Version) {
        if !version.shown {
            return;
        }
        let number = version.address.segment();
        let (word, bit) = (number / u64::BITS, 1 << (number % u64::BITS));
        self.superseded[word as usize].fetch_or(bit, Ordering::Relaxed);
    }

    /// Returns true if the segment holds a superseded item that no dead map marks.
    pub(super) fn is_superseded(&self, number: SegmentNumber) -> bool {
        let word = self.superseded[(number / u64::BITS) as usize].load(Ordering::Relaxed);
        word >> (number % u64::BITS) & 1 != 0
    }

    /// Calls `visit` for every key of a shard with its newest version. `places` is scratch memory
    /// that is reused.
    pub(super) fn visit(
        &self,
        shard: usize,
        places: &mut Vec<u32>,
        mut visit: impl FnMut(KeyHash, Version),
    ) {
        let mut shard = lock(&self.shards[shard]);
        self.decide_shard(&mut shard, places);
        for entry in &shard.entries {
            visit(KeyHash { lo: entry.lo, hi: entry.hi }, entry.version());
        }
    }

    fn shard_of(&self, lo: u64) -> usize {
        (lo >> (u64::BITS - self.shard_bits)) as usize
    }
}

impl Drop for Newest {
    fn drop(&mut self) {
        self.forget(0..self.shards.len());
    }
}

/// Versions that one thread has read and not yet entered.
pub(super) struct Gathering<'a> {
    newest: &'a Newest,
    shards: Vec<Vec<Entry>>,
    places: Vec<u32>,
}

impl<'a> Gathering<'a> {
    pub(super) fn new(newest: &'a Newest) -> Self {
        newest.budget.charge(Self::footprint(newest));
        let shards = vec![Vec::new(); newest.shards.len()];
        Gathering { newest, shards, places: Vec::new() }
    }

    /// Returns the memory charged for a [`Gathering`], in bytes: enough for [`GATHERED`] versions
    /// for every shard.
    fn footprint(newest: &Newest) -> u64 {
        (newest.shards.len() * GATHERED * size_of::<Entry>()) as u64
    }

    /// Adds a version of a key, if this pass decides the key.
    pub(super) fn add(&mut self, key: KeyHash, version: Version) {
        let entry = Entry::new(key, version);
        let number = self.newest.shard_of(entry.lo);
        if !self.newest.part().contains(&number) {
            return;
        }
        let shard = &mut self.shards[number];
        if shard.is_empty() {
            shard.reserve_exact(GATHERED);
        }
        shard.push(entry);
        if shard.len() == GATHERED {
            self.newest.enter_all(number, shard, &mut self.places);
            shard.clear();
        }
    }
}

impl Drop for Gathering<'_> {
    fn drop(&mut self) {
        for (number, shard) in self.shards.iter().enumerate().filter(|(_, it)| !it.is_empty()) {
            self.newest.enter_all(number, shard, &mut self.places);
        }
        self.newest.budget.release(Self::footprint(self.newest));
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

    /// Returns the newest version of each key, by the low half of its hash, as all passes of a
    /// table of `bytes` bytes find it. Also returns the number of passes.
    fn decided(bytes: usize, all: &[(u32, Version)]) -> (HashMap<u64, Version>, usize) {
        let budget = Arc::new(Budget::new(1 << 30));
        let newest = Newest::new(bytes, 8, 1 << 20, &budget);
        let (mut found, mut passes) = (HashMap::new(), 0);
        loop {
            passes += 1;
            let mut gathering = Gathering::new(&newest);
            for (key, version) in all {
                gathering.add(KeyHash::of(&key.to_le_bytes(), 7), *version);
            }
            drop(gathering);
            for shard in newest.part() {
                newest.visit(shard, &mut Vec::new(), |key, version| {
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
    fn keys_that_exceed_memory_are_decided_in_further_passes() {
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
    fn a_copy_counts_if_the_original_is_marked_in_either_order() {
        for all in [[true, false], [false, true]] {
            let all = all.map(|shown| (1, version(5, usize::from(shown), shown)));
            let (found, _) = decided(0, &all);
            assert!(found.into_values().all(|version| version.shown));
        }
    }

    proptest! {
        #[test]
        fn the_newest_of_each_key_is_shown_at_any_limit(
            all in prop::collection::vec((0..500u32, 1..40u64, 0..1000usize, any::<bool>()), 0..2000),
            bytes in 0..200_000usize,
        ) {
            let all: Vec<(u32, Version)> =
                all.into_iter().map(|(key, seq, at, shown)| (key, version(seq, at, shown))).collect();
            prop_assert_eq!(decided(bytes, &all).0, newest_of(&all));
        }
    }
}
