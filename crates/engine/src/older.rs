//! Older slots: a set of a key that only the device has reads nothing.
//!
//! The set cannot know whether the record that its tag leads to is the same key's: in one case of some thousand
//! it is another's. So the new version gets a slot of its own, and the old slot stays, marked as *older*. Beside
//! it a part of the hash of the key that was set is remembered: 44 bits beyond the key's position. Whoever sees
//! the old record's key compares later. If the bits agree, the record died when the set was made; if not, it is
//! another key's, and its slot becomes one like others. A record is lost by this if two keys have the same
//! position and agree in 44 further bits.
//!
//! Until then
//! - an older slot answers for other keys than the one that was set over it, and never for that one, even when
//!   its newer version has gone;
//! - all sets over older slots of one position are of one key: a write of another key looks at them first;
//! - the record counts as alive, so its segment is not freed without a walk over it;
//! - the segment has noted a death, and no dead map is made of it: what hides the record stays as long as it
//!   must.
//!
//! The cleaner settles older slots when it walks their segment, before a dead map of it is made, and when there
//! are many: by the summary of the segment if it has one, else by reading the records.

use crate::UnixSeconds;
use crate::cleaner::Cleaner;
use crate::cleaner::walk::at;
use crate::fetch::PlaceMap;
use crate::index::slot::Slot;
use crate::index::{Guard, Place};
use crate::key::Key;
use crate::lane::Lane;
use crate::lock::lock;
use larder_log::address::GRANULE;
use larder_log::recover::index_image::unusable;
use larder_log::{Address, Budget, Log, Record, Rule, SegmentNumber, Tier};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Locks that the lists are spread over.
const SHARDS: usize = 64;
/// Bits of the hash that are remembered.
const HASH_BITS: u32 = 44;
const HASH_MASK: u64 = (1 << HASH_BITS) - 1;
/// About what an older slot takes: its slot in the index, and what is remembered, in bytes.
const BYTES: u64 = 20;
/// The share of the lane's memory that older slots take at most, as a divisor,
const MEMORY_SHARE: u64 = 16;
/// and the share of what the items take on the device.
const DATA_SHARE: u64 = 64;
/// While tables take more than this percentage of what the index may take, sets read.
const INDEX_PERCENT: u64 = 94;
/// The log learns what is most probably dead in a segment in steps of this share of its bytes, a divisor.
const TOLD_SHARE: usize = 64;
/// Entries of a list that a look searches one by one.
const MOST_UNSORTED: usize = 32;
/// Without a summary the cleaner reads at most this number of records one by one, and for more the whole segment.
const FEW: usize = 8;
/// Bytes that a record costs while the commit may fail in which it was found dead.
const FOUND_BYTES: u64 = 48;
/// Segments that one turn looks at when nothing else can be freed.
const SEGMENTS_PER_TURN: usize = 4;
/// Records between which the cleaner lets others reclaim memory.
const BATCH: usize = 64;
/// Seconds after which the cleaner tries again to read what it could not.
const RETRY: UnixSeconds = 60;
/// Turns of the cleaner after which the limit of older slots is found anew, if not in the next second.
const TURNS: u32 = 256;
/// What a list takes beside its entries, bytes.
const LIST_BYTES: usize = 96;

/// An older slot's record in its segment, and the hash of the key that was set over it: bits 44.. the offset in
/// units of 8 bytes.
type Entry = u64;

fn entry(address: Address, key: &Key<'_>) -> Entry {
    ((address.offset() / GRANULE) as u64) << HASH_BITS | key.beyond_position()
}

fn offset(entry: Entry) -> usize {
    (entry >> HASH_BITS) as usize * GRANULE
}

/// What is remembered of a lane's older slots, by the segment that they lead to.
#[derive(Debug)]
pub(crate) struct OlderSlots {
    shards: Box<[Mutex<Shard>]>,
    count: AtomicUsize,
    most: AtomicUsize,
    /// How many segments wait for dead maps, of those that older slots led to.
    closed: AtomicUsize,
    budget: Arc<Budget>,
    /// Records that were found dead in sync mode: their bytes, and the commit of that moment.
    found_dead: Mutex<HashMap<Address, (u32, u64)>>,
}

#[derive(Debug, Default)]
struct List {
    entries: Vec<Entry>,
    /// Entries at the front that are gone: walks settle them in order.
    gone: usize,
    /// Up to here they are sorted. The others wait for the next look.
    sorted: usize,
    /// About what the records take, in bytes: as much as those that were set over them.
    record_bytes: u32,
    /// The part of these bytes that the log knows of.
    told: u32,
}

impl List {
    fn len(&self) -> usize {
        self.entries.len() - self.gone
    }

    fn footprint(&self) -> u64 {
        (LIST_BYTES + self.entries.capacity() * size_of::<Entry>()) as u64
    }

    fn push(&mut self, entry: Entry) {
        if self.entries.len() == self.entries.capacity() {
            self.forget_gone();
            self.entries.reserve_exact(self.entries.len() / 4 + 4);
        }
        self.entries.push(entry);
    }

    fn forget_gone(&mut self) {
        self.entries.drain(..self.gone);
        self.sorted -= self.gone;
        self.gone = 0;
    }

    fn remove(&mut self, at: usize) {
        self.record_bytes -= self.record_bytes / self.len() as u32;
        if at > self.gone {
            self.entries.remove(at);
            self.sorted -= usize::from(at < self.sorted);
            return;
        }
        self.gone += 1;
        self.sorted = self.sorted.max(self.gone);
        if self.gone * 2 > self.entries.len() {
            self.forget_gone();
        }
    }

    fn sort(&mut self) {
        if self.sorted < self.entries.len() {
            self.entries[self.gone..].sort_unstable();
            self.sorted = self.entries.len();
        }
    }

    /// Where the entry of the record at `address` is.
    fn find(&mut self, address: Address) -> Option<usize> {
        if self.entries.len() - self.sorted > MOST_UNSORTED {
            self.sort();
        }
        let sorted = &self.entries[self.gone..self.sorted];
        let found = sorted.binary_search_by_key(&address.offset(), |&entry| offset(entry));
        found.ok().map(|at| self.gone + at).or_else(|| {
            let mut others = self.entries[self.sorted..].iter();
            let at = others.position(|&entry| offset(entry) == address.offset())?;
            Some(self.sorted + at)
        })
    }

    /// Segments are sorted by this: the length, in steps of at most an eighth of it.
    fn length_class(&self) -> u32 {
        let shift = self.len().max(1).ilog2().saturating_sub(3);
        (shift << 3) + (self.len() >> shift) as u32
    }
}

#[derive(Debug, Default)]
struct Shard {
    lists: PlaceMap<SegmentNumber, List>,
    /// Segments with lists, the longest last: see [`List::length_class`].
    by_length: BTreeSet<(u32, SegmentNumber)>,
    /// Segments that cannot be read as a whole.
    passed_over: HashSet<SegmentNumber>,
    /// Segments that wait for dead maps.
    closed: HashSet<SegmentNumber>,
}

impl Shard {
    fn change(
        &mut self,
        log: &Log,
        budget: &Budget,
        number: SegmentNumber,
        change: impl FnOnce(&mut List),
    ) {
        let list = self.lists.entry(number).or_default();
        let (from, was_empty) = (list.length_class(), list.len() == 0);
        let bytes = if was_empty { 0 } else { list.footprint() };
        change(list);
        let (to, is_empty) = (list.length_class(), list.len() == 0);
        let (bytes_after, dead) =
            if is_empty { (0, 0) } else { (list.footprint(), list.record_bytes) };
        if is_empty || dead.abs_diff(list.told) as usize > log.segment_size() / TOLD_SHARE {
            list.told = dead;
            log.assume_dead(number, dead);
        }
        match bytes_after.checked_sub(bytes) {
            Some(more) => budget.charge(more),
            None => budget.release(bytes - bytes_after),
        }
        if is_empty {
            self.lists.remove(&number);
            self.passed_over.remove(&number);
        }
        if from != to && !self.passed_over.contains(&number) {
            self.by_length.remove(&(from, number));
            if !is_empty {
                self.by_length.insert((to, number));
            }
        }
    }
}

impl OlderSlots {
    pub(crate) fn new(budget: &Arc<Budget>) -> OlderSlots {
        OlderSlots {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            count: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            closed: AtomicUsize::new(0),
            budget: Arc::clone(budget),
            found_dead: Mutex::default(),
        }
    }

    fn shard(&self, number: SegmentNumber) -> &Mutex<Shard> {
        &self.shards[number as usize % SHARDS]
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether there may be more.
    #[inline]
    pub(crate) fn admits(&self) -> bool {
        self.count.load(Ordering::Relaxed) < self.most.load(Ordering::Relaxed)
    }

    /// Remembers which key is set over a record of about `bytes` in a segment.
    fn insert(&self, log: &Log, number: SegmentNumber, entry: Entry, bytes: u32) {
        let mut shard = lock(self.shard(number));
        shard.change(log, &self.budget, number, |list| {
            list.push(entry);
            list.record_bytes = list.record_bytes.saturating_add(bytes);
        });
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the key was set over the record at `address`; `None` if no key was.
    pub(crate) fn is_set_over(&self, address: Address, key: &Key<'_>) -> Option<bool> {
        let mut shard = lock(self.shard(address.segment()));
        let list = shard.lists.get_mut(&address.segment())?;
        let at = list.find(address)?;
        Some(list.entries[at] & HASH_MASK == key.beyond_position())
    }

    /// An older slot is settled, or gone.
    pub(crate) fn forget(&self, log: &Log, address: Address) {
        let mut shard = lock(self.shard(address.segment()));
        let list = shard.lists.get_mut(&address.segment());
        if let Some(at) = list.and_then(|list| list.find(address)) {
            shard.change(log, &self.budget, address.segment(), |list| list.remove(at));
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Nothing leads to anything any more.
    pub(crate) fn clear(&self, log: &Log) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            for (number, list) in std::mem::take(&mut shard.lists) {
                self.count.fetch_sub(list.len(), Ordering::Relaxed);
                self.budget.release(list.footprint());
                log.assume_dead(number, 0);
            }
            shard.by_length.clear();
            shard.passed_over.clear();
        }
    }

    /// Whether there are some that lead into a segment.
    pub(crate) fn lead_into(&self, number: SegmentNumber) -> bool {
        // Not without the lock: whoever has noted a death before has an entry here.
        lock(self.shard(number)).lists.contains_key(&number)
    }

    /// Where those lie that lead into a segment, in order.
    fn in_segment(&self, number: SegmentNumber) -> Vec<Address> {
        let mut shard = lock(self.shard(number));
        let Some(list) = shard.lists.get_mut(&number) else { return Vec::new() };
        list.sort();
        let entries = list.entries[list.gone..].iter();
        entries.map(|&entry| Address::new(number, offset(entry))).collect()
    }

    /// A segment with a long list, about the longest, that was not [passed over](OlderSlots::pass_over).
    fn longest(&self) -> Option<SegmentNumber> {
        let longest = |shard: &Mutex<Shard>| lock(shard).by_length.last().copied();
        self.shards.iter().filter_map(longest).max().map(|(_, number)| number)
    }

    /// Not all of the older slots that lead into a segment can be settled.
    fn pass_over(&self, number: SegmentNumber) {
        let Shard { lists, by_length, passed_over, .. } = &mut *lock(self.shard(number));
        if let Some(list) = lists.get(&number) {
            by_length.remove(&(list.length_class(), number));
            passed_over.insert(number);
        }
    }

    /// How many segments there are of which not all older slots can be settled.
    pub(crate) fn passed_over(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).passed_over.len()).sum()
    }

    /// Whether not all of the older slots that lead into a segment can be settled.
    pub(crate) fn is_passed_over(&self, number: SegmentNumber) -> bool {
        lock(self.shard(number)).passed_over.contains(&number)
    }

    /// Forgets which segments were passed over, and returns them.
    fn retry(&self) -> Vec<SegmentNumber> {
        let mut tried = Vec::new();
        for shard in &self.shards {
            let Shard { lists, by_length, passed_over, .. } = &mut *lock(shard);
            for number in passed_over.drain() {
                by_length.extend(lists.get(&number).map(|list| (list.length_class(), number)));
                tried.push(number);
            }
        }
        tried
    }

    /// A dead map is to be made of a segment. Until then no more older slots lead there.
    fn close(&self, number: SegmentNumber) {
        if lock(self.shard(number)).closed.insert(number) {
            self.closed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The opposite, for all segments.
    pub(crate) fn open_all(&self) {
        if self.closed.swap(0, Ordering::Relaxed) > 0 {
            self.shards.iter().for_each(|shard| lock(shard).closed.clear());
        }
    }

    /// Whether more older slots may lead to a segment.
    pub(crate) fn is_open(&self, number: SegmentNumber) -> bool {
        self.closed.load(Ordering::Relaxed) == 0
            || !lock(self.shard(number)).closed.contains(&number)
    }

    /// A record of `bytes` was found dead in a commit that may fail yet.
    fn note_found_dead(&self, address: Address, bytes: usize, commit: u64) {
        let mut found = lock(&self.found_dead);
        if found.insert(address, (bytes as u32, commit)).is_none() {
            self.budget.charge(FOUND_BYTES);
        }
    }

    /// What a record took that was found dead, although the commit that made it so may fail yet.
    pub(crate) fn size_of_dead(&self, address: Address) -> Option<u32> {
        lock(&self.found_dead).get(&address).map(|&(bytes, _)| bytes)
    }

    /// Everything up to a commit is durable.
    pub(crate) fn settle(&self, commit: u64) {
        let mut found = lock(&self.found_dead);
        let before = found.len();
        found.retain(|_, (_, found_in)| *found_in > commit);
        self.budget.release((before - found.len()) as u64 * FOUND_BYTES);
    }

    /// Writes all of them to an image.
    pub(crate) fn save(&self, image: &mut impl Write) -> io::Result<()> {
        let shards: Vec<_> = self.shards.iter().map(lock).collect();
        let lists = || shards.iter().flat_map(|shard| &shard.lists);
        image.write_all(&(lists().count() as u32).to_le_bytes())?;
        for (number, list) in lists() {
            let entries = &list.entries[list.gone..];
            image.write_all(&number.to_le_bytes())?;
            image.write_all(&list.record_bytes.to_le_bytes())?;
            image.write_all(&(entries.len() as u32).to_le_bytes())?;
            entries.iter().try_for_each(|entry| image.write_all(&entry.to_le_bytes()))?;
        }
        Ok(())
    }

    /// Reads what [`OlderSlots::save`] wrote.
    pub(crate) fn restore(&self, log: &Log, image: &mut impl Read) -> io::Result<()> {
        let mut word = [0; 4];
        let mut read_u32 = |image: &mut dyn Read| {
            image.read_exact(&mut word)?;
            io::Result::Ok(u32::from_le_bytes(word))
        };
        for _ in 0..read_u32(image)? {
            let (number, bytes, count) = (read_u32(image)?, read_u32(image)?, read_u32(image)?);
            if !log.numbers().contains(&number) || count == 0 {
                return Err(unusable("older slots lead nowhere"));
            }
            for _ in 0..count {
                let mut entry = [0; 8];
                image.read_exact(&mut entry)?;
                self.insert(log, number, Entry::from_le_bytes(entry), bytes / count);
            }
        }
        Ok(())
    }
}

impl Lane {
    /// Publishes the slot of a record of `size` bytes over `old`, whose key nobody has looked at.
    pub(crate) fn fill_over(
        &self,
        guard: &Guard<'_>,
        key: &Key<'_>,
        place: Place<'_>,
        slot: Slot,
        old: Place<'_>,
        size: usize,
    ) {
        let address = old.slot().address();
        // In this order: whoever takes the note of the death for a map sees that there is an older slot.
        let size = self.log.likely_size(address.segment(), size) as u32;
        self.older.insert(&self.log, address.segment(), entry(address, key), size);
        self.log.note_death(address.segment());
        guard.fill_over(place, slot, old);
    }

    /// The key of the record is known that an older slot leads to. The answer is whether it is current: then its
    /// slot is one like others. Else it died when the newer version was set.
    pub(crate) fn settle_older(
        &self,
        guard: &Guard<'_>,
        key: &Key<'_>,
        old: Place<'_>,
        size: usize,
    ) -> bool {
        let address = old.slot().address();
        let dead =
            self.older.is_set_over(address, key) != Some(false) || Rule::OlderIsProved.is_broken();
        if dead {
            if self.durable.as_ref().is_some_and(|durable| durable.is_sync()) {
                self.older.note_found_dead(address, size, self.open_commit());
            }
            guard.remove(old, false);
            self.kill(address.segment(), size);
            self.log.note_changed(address.segment());
        } else {
            guard.set_current(old);
        }
        self.older.forget(&self.log, address);
        !dead
    }

    /// Takes what [`Lane::fill_over`] did back: the newer version at `place` is undone. False if the older slot
    /// has been settled.
    pub(crate) fn take_back_over(
        &self,
        guard: &Guard<'_>,
        key: &Key<'_>,
        place: Place<'_>,
        was_item: bool,
        before: Address,
    ) -> bool {
        let Some((old, slot, ())) = guard.find(key, at(before)) else { return false };
        if slot.is_older() {
            guard.take_back(place, old, was_item);
            self.older.forget(&self.log, before);
        } else {
            // Somebody has looked meanwhile: it is another key's.
            guard.remove(place, was_item);
        }
        true
    }

    /// An older slot is taken out of the index without a look at its record.
    pub(crate) fn forget_older(&self, slot: Slot) {
        if slot.is_older() {
            self.older.forget(&self.log, slot.address());
        }
    }

    /// Says how many older slots there may be.
    pub(crate) fn limit_older(&self) {
        let (items, older) = (self.index.items(), self.older.count() as u64);
        let data: u64 = [Tier::Fast, Tier::Lower].map(|tier| self.tier_bytes(tier).1).iter().sum();
        let of_items =
            (u128::from(data) * u128::from(items) / u128::from((items + older).max(1))) as u64;
        let bytes = (of_items / DATA_SHARE).min(self.budget.limit() / MEMORY_SHARE);
        // Where nothing may be lost, each record that cannot be read keeps all tombstones from being dropped.
        let waits = self.may_lose_nothing() && self.older.passed_over() > 0;
        let most = if waits || self.index.fills(INDEX_PERCENT) { 0 } else { bytes / BYTES };
        self.older.most.store(most as usize, Ordering::Relaxed);
    }

    /// Whether the index leads to the record of `size` bytes at `address`, with this key. An older slot is settled
    /// before.
    pub(crate) fn settle_older_at(&self, address: Address, key: &Key<'_>, size: usize) -> bool {
        let guard = self.index.lock(key);
        match guard.find(key, at(address)) {
            Some((place, slot, ())) => {
                !slot.is_older() || self.settle_older(&guard, key, place, size)
            }
            None => {
                // Nothing leads there any more, or nobody finds what does.
                self.older.forget(&self.log, address);
                false
            }
        }
    }
}

/// The cleaner's part.
#[derive(Debug, Default)]
pub(crate) struct Settling {
    /// Segments whose older slots are to be settled.
    waiting: BTreeSet<SegmentNumber>,
    /// Somebody wants a dead map of one of them.
    is_awaited: bool,
    /// When the limit of older slots was found last, and turns since.
    limited: (UnixSeconds, u32),
}

impl Settling {
    /// A dead map of the segment is wanted.
    pub(crate) fn want(&mut self, older: &OlderSlots, number: SegmentNumber) {
        older.close(number);
        self.waiting.insert(number);
        self.is_awaited = true;
    }
}

impl Cleaner {
    /// Settles older slots, if there are many, or if they keep something waiting. The answer is whether there is
    /// more to do.
    pub(crate) fn settle_many(&mut self, lane: &Lane) -> bool {
        let Some(durable) = &lane.durable else { return false };
        self.limit_older(lane);
        let (count, most) = (lane.older.count(), lane.older.most.load(Ordering::Relaxed));
        if self.settling.waiting.is_empty() && count > most / 2 {
            self.settling.waiting.extend(lane.older.longest());
        }
        let Some(number) = self.settling.waiting.pop_first() else { return false };
        self.settle_segment(lane, number);
        if self.settling.waiting.is_empty() && std::mem::take(&mut self.settling.is_awaited) {
            // Whoever waits for dead maps looks again after a commit.
            durable.want_commit();
        }
        true
    }

    fn limit_older(&mut self, lane: &Lane) {
        let now = lane.now.load(Ordering::Relaxed);
        let (found, turns) = self.settling.limited;
        let is_due = found != now || turns == TURNS;
        self.settling.limited = (now, if is_due { 1 } else { turns + 1 });
        if !is_due {
            return;
        }
        // Before those that were passed over are tried again: they may be passed over once more.
        lane.limit_older();
        if found / RETRY != now / RETRY {
            self.settling.waiting.extend(lane.older.retry());
            lane.older.open_all();
        }
        if found != now {
            self.look_again_at_ends(lane);
        }
    }

    /// Nothing can be freed any more: settles some older slots, for what they lead to may be dead. False if none
    /// of those that were looked at could be settled.
    pub(super) fn settle_any(&mut self, lane: &Lane) -> bool {
        (0..SEGMENTS_PER_TURN).any(|_| {
            lane.older.longest().is_some_and(|number| self.settle_segment(lane, number) > 0)
        })
    }

    /// Settles the older slots that lead into a segment. The answer is how many. If some are left because what
    /// they lead to cannot be read and may not be lost, the segment is passed over.
    fn settle_segment(&mut self, lane: &Lane, number: SegmentNumber) -> usize {
        let mut left = lane.older.in_segment(number);
        let count = left.len();
        if count == 0 {
            return 0;
        }
        if let Ok(Some(summary)) = lane.log.summary_of(number) {
            let records = summary.entries.iter().map(|entry| {
                let address = Address::new(number, entry.offset as usize);
                (address, Key::of_hash(entry.hash), entry.size as usize)
            });
            self.settle_those(lane, &mut left, records);
        }
        if left.len() > FEW {
            self.settle_by_all(lane, number, &mut left);
        } else {
            self.settle_one_by_one(lane, &mut left);
        }
        if left.is_empty() {
            return count;
        }
        if lane.may_lose_nothing() {
            lane.older.pass_over(number);
            return count - left.len();
        }
        self.give_up_older(lane, number, &left.into_iter().collect());
        count
    }

    /// Settles those of the older slots in `left` that lead to one of these records, both in order of addresses.
    fn settle_those<'k>(
        &mut self,
        lane: &Lane,
        left: &mut Vec<Address>,
        records: impl Iterator<Item = (Address, Key<'k>, usize)>,
    ) {
        let mut records = records.peekable();
        let mut batch = 0;
        self.participant.tick();
        left.retain(|&address| {
            while records.next_if(|(at, ..)| at.offset() < address.offset()).is_some() {}
            let record = records.next_if(|(at, ..)| *at == address);
            if let Some((_, key, size)) = &record {
                lane.settle_older_at(address, key, *size);
                batch += 1;
                if batch % BATCH == 0 {
                    self.participant.tick();
                }
            }
            record.is_none()
        });
        self.participant.sleep();
    }

    /// As [`Cleaner::settle_those`], by reading all of the segment.
    fn settle_by_all(&mut self, lane: &Lane, number: SegmentNumber, left: &mut Vec<Address>) {
        let Ok(loaded) = lane.log.load_if_absent(number) else { return };
        let image = loaded.as_ref().map(|loaded| &loaded.image[..]);
        // SAFETY: the segment is sealed and settled, and only the cleaner frees segments and their frames.
        let records = unsafe { lane.log.records(number, image) }.map(|(address, record)| {
            (address, Key::new(record.key(), lane.options.hash_seed), record.size())
        });
        self.settle_those(lane, left, records);
        loaded.into_iter().for_each(|loaded| lane.log.reuse(loaded));
    }

    fn settle_one_by_one(&mut self, lane: &Lane, left: &mut Vec<Address>) {
        left.retain(|&address| {
            let Ok(read) = lane.log.read_record(address) else { return true };
            // SAFETY: the bytes were checked to begin with one whole record.
            let record = unsafe { Record::at(read.as_ptr(), || 0) };
            let key = Key::new(record.key(), lane.options.hash_seed);
            self.participant.tick();
            lane.settle_older_at(address, &key, record.size());
            self.participant.sleep();
            false
        });
    }

    /// What older slots lead to cannot be read: it is as good as evicted.
    fn give_up_older(&self, lane: &Lane, number: SegmentNumber, lost: &HashSet<Address>) {
        // It may be readable after a restart: until then it counts as what hides older versions.
        lane.keep_ends(number, lost.iter().map(|address| address.offset() as u32).collect());
        self.take_unreadable(lane, number, |slot| lost.contains(&slot.address()));
        lost.iter().for_each(|&address| lane.older.forget(&lane.log, address));
    }
}
