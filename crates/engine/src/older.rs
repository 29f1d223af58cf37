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
use crate::fetch::PlaceMap;
use crate::index::slot::Slot;
use crate::index::{Guard, Place};
use crate::key::Key;
use crate::lane::{Lane, lock};
use crate::stats::bump;
use larder_log::address::GRANULE;
use larder_log::format::Summary;
use larder_log::index_image::unusable;
use larder_log::{Address, Budget, Log, Record, Rule, SegmentNumber, Tier};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Lists are spread over so many locks.
const SHARDS: usize = 64;
/// Bits of the hash that are remembered.
const HASH_BITS: u32 = 44;
const HASH_MASK: u64 = (1 << HASH_BITS) - 1;
/// About what an older slot takes: its slot in the index, and what is remembered, in bytes.
const BYTES: u64 = 20;
/// Older slots take one byte in so many of the lane's memory at most,
const MEMORY_SHARE: u64 = 16;
/// and of what the items take on the device.
const DATA_SHARE: u64 = 64;
/// While tables take more than this percentage of what the index may take, sets read.
const INDEX_PERCENT: u64 = 94;
/// The log is told of what is most probably dead in a segment in steps of one in so many of its bytes.
const TOLD_SHARE: usize = 64;
/// Entries of a list that a look searches one by one.
const MOST_UNSORTED: usize = 32;
/// Segments are sorted by how long their lists are in steps of so many entries.
const LENGTH_STEP: usize = 64;
/// Records that one turn of the cleaner reads to settle older slots, at most.
const READS_PER_TURN: usize = 64;
/// Segments that one turn looks at when nothing else can be freed.
const SEGMENTS_PER_TURN: usize = 4;
/// After so many seconds, what could not be read is tried again.
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
    budget: Arc<Budget>,
    /// Records that were found dead in sync mode, and their bytes, with the commit of that moment.
    found_dead: Mutex<Vec<(Address, u32, u64)>>,
}

#[derive(Debug, Default)]
struct List {
    entries: Vec<Entry>,
    /// So many of them are sorted. The others wait for the next look.
    sorted: usize,
    /// About what the records take, in bytes: as much as those that were set over them.
    record_bytes: u32,
    /// What the log was told of that.
    told: u32,
}

impl List {
    fn footprint(&self) -> u64 {
        (LIST_BYTES + self.entries.capacity() * size_of::<Entry>()) as u64
    }

    fn sort(&mut self) {
        if self.sorted < self.entries.len() {
            self.entries.sort_unstable();
            self.sorted = self.entries.len();
        }
    }

    /// Where the entry of the record at `address` is.
    fn find(&mut self, address: Address) -> Option<usize> {
        if self.entries.len() - self.sorted > MOST_UNSORTED {
            self.sort();
        }
        let (sorted, others) = self.entries.split_at(self.sorted);
        let found = sorted.binary_search_by_key(&address.offset(), |&entry| offset(entry));
        found.ok().or_else(|| {
            let at = others.iter().position(|&entry| offset(entry) == address.offset())?;
            Some(self.sorted + at)
        })
    }
}

#[derive(Debug, Default)]
struct Shard {
    lists: PlaceMap<SegmentNumber, List>,
    /// Segments with long lists, the longest last.
    by_length: BTreeSet<(usize, SegmentNumber)>,
    /// Segments that cannot be read as a whole.
    passed_over: HashSet<SegmentNumber>,
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
        let before = list.entries.len();
        let bytes = if before == 0 { 0 } else { list.footprint() };
        change(list);
        let after = list.entries.len();
        let (bytes_after, dead) = match after {
            0 => (0, 0),
            _ => (list.footprint(), list.record_bytes),
        };
        if after == 0 || dead.abs_diff(list.told) as usize > log.segment_size() / TOLD_SHARE {
            list.told = dead;
            log.assume_dead(number, dead);
        }
        match bytes_after.checked_sub(bytes) {
            Some(more) => budget.charge(more),
            None => budget.release(bytes - bytes_after),
        }
        if after == 0 {
            self.lists.remove(&number);
            self.passed_over.remove(&number);
        }
        let (from, to) = (before / LENGTH_STEP, after / LENGTH_STEP);
        if from != to {
            self.by_length.remove(&(from, number));
            if to > 0 {
                self.by_length.insert((to, number));
            }
        }
    }

    fn find(&mut self, address: Address) -> Option<Entry> {
        let list = self.lists.get_mut(&address.segment())?;
        list.find(address).map(|at| list.entries[at])
    }
}

impl OlderSlots {
    pub(crate) fn new(budget: &Arc<Budget>) -> OlderSlots {
        OlderSlots {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            count: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
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
        shard.change(log, &self.budget, number, |List { entries, record_bytes, .. }| {
            if entries.len() == entries.capacity() {
                entries.reserve_exact(entries.len() / 4 + 4);
            }
            entries.push(entry);
            *record_bytes = record_bytes.saturating_add(bytes);
        });
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the key was set over the record at `address`; `None` if no key was.
    pub(crate) fn is_set_over(&self, address: Address, key: &Key<'_>) -> Option<bool> {
        let found = lock(self.shard(address.segment())).find(address)?;
        Some(found & HASH_MASK == key.beyond_position())
    }

    /// An older slot is settled, or gone.
    pub(crate) fn forget(&self, log: &Log, address: Address) {
        let mut shard = lock(self.shard(address.segment()));
        if shard.find(address).is_some() {
            shard.change(log, &self.budget, address.segment(), |list| {
                let Some(at) = list.find(address) else { return };
                list.record_bytes -= list.record_bytes / list.entries.len() as u32;
                list.entries.remove(at);
                list.sorted -= usize::from(at < list.sorted);
            });
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Nothing leads to anything any more.
    pub(crate) fn clear(&self, log: &Log) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            for (number, list) in std::mem::take(&mut shard.lists) {
                self.count.fetch_sub(list.entries.len(), Ordering::Relaxed);
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

    /// Where those lie that lead into a segment, from an offset on, at most so many.
    fn in_segment(&self, number: SegmentNumber, from: usize, most: usize) -> Vec<Address> {
        let mut shard = lock(self.shard(number));
        let Some(list) = shard.lists.get_mut(&number) else { return Vec::new() };
        list.sort();
        let list = &list.entries;
        let first = list.partition_point(|&entry| offset(entry) < from);
        list[first..].iter().take(most).map(|&entry| Address::new(number, offset(entry))).collect()
    }

    /// A segment with a long list, about the longest.
    fn longest(&self) -> Option<SegmentNumber> {
        let longest = |shard: &Mutex<Shard>| lock(shard).by_length.last().copied();
        self.shards.iter().filter_map(longest).max().map(|(_, number)| number)
    }

    /// Some segment with older slots that was not [passed over](OlderSlots::pass_over).
    fn any(&self) -> Option<SegmentNumber> {
        self.shards.iter().find_map(|shard| {
            let shard = lock(shard);
            let mut numbers = shard.lists.keys().copied();
            numbers.find(|number| !shard.passed_over.contains(number))
        })
    }

    /// Not all of the older slots that lead into a segment can be settled.
    fn pass_over(&self, number: SegmentNumber) {
        let mut shard = lock(self.shard(number));
        let length = shard.lists.get(&number).map_or(0, |list| list.entries.len()) / LENGTH_STEP;
        shard.by_length.remove(&(length, number));
        shard.passed_over.insert(number);
    }

    /// Whether not all of the older slots that lead into a segment can be settled.
    pub(crate) fn is_passed_over(&self, number: SegmentNumber) -> bool {
        lock(self.shard(number)).passed_over.contains(&number)
    }

    /// What was passed over is tried again.
    fn retry(&self) {
        for shard in &self.shards {
            let Shard { lists, by_length, passed_over } = &mut *lock(shard);
            for number in passed_over.drain() {
                let length = lists.get(&number).map_or(0, |list| list.entries.len()) / LENGTH_STEP;
                if length > 0 {
                    by_length.insert((length, number));
                }
            }
        }
    }

    /// What a record took that was found dead, although the commit that made it so may fail yet.
    pub(crate) fn size_of_dead(&self, address: Address) -> Option<u32> {
        let found = lock(&self.found_dead);
        found.iter().find(|(other, ..)| *other == address).map(|&(_, size, _)| size)
    }

    /// Everything up to a commit is durable.
    pub(crate) fn settle(&self, commit: u64) {
        lock(&self.found_dead).retain(|&(_, _, found_in)| found_in > commit);
    }

    /// Writes all of them to an image.
    pub(crate) fn save(&self, image: &mut impl Write) -> io::Result<()> {
        let shards: Vec<_> = self.shards.iter().map(lock).collect();
        let lists = || shards.iter().flat_map(|shard| &shard.lists);
        image.write_all(&(lists().count() as u32).to_le_bytes())?;
        for (number, List { entries, record_bytes, .. }) in lists() {
            image.write_all(&number.to_le_bytes())?;
            image.write_all(&record_bytes.to_le_bytes())?;
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
                let found = (address, size as u32, self.open_commit());
                lock(&self.older.found_dead).push(found);
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
        let at = |slot: Slot| (slot.address() == before).then_some(());
        let Some((old, slot, ())) = guard.find(key, at) else { return false };
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
        let most = if self.index.fills(INDEX_PERCENT) { 0 } else { bytes / BYTES };
        self.older.most.store(most as usize, Ordering::Relaxed);
    }

    /// Whether the index leads to the record of `size` bytes at `address`, with this key. An older slot is settled
    /// before.
    pub(crate) fn settle_older_at(&self, address: Address, key: &Key<'_>, size: usize) -> bool {
        let guard = self.index.lock(key);
        let at = |slot: Slot| (slot.address() == address).then_some(());
        match guard.find(key, at) {
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
    /// Segments whose older slots are to be settled, each from which offset on.
    waiting: BTreeMap<SegmentNumber, usize>,
    /// Somebody wants a dead map of one of them.
    is_awaited: bool,
    /// When the limit of older slots was found last, and turns since.
    limited: (UnixSeconds, u32),
}

impl Settling {
    /// A dead map of the segment is wanted.
    pub(crate) fn want(&mut self, number: SegmentNumber) {
        self.waiting.entry(number).or_insert(0);
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
            self.settling.waiting.extend(lane.older.longest().map(|number| (number, 0)));
        }
        let Some((number, from)) = self.settling.waiting.pop_first() else { return false };
        if let (_, Some(next)) = self.settle_segment(lane, number, from) {
            self.settling.waiting.insert(number, next);
        } else if self.settling.waiting.is_empty() && std::mem::take(&mut self.settling.is_awaited)
        {
            // Whoever waits for dead maps looks again after a commit.
            durable.want_commit();
        }
        true
    }

    fn limit_older(&mut self, lane: &Lane) {
        let now = lane.now.load(Ordering::Relaxed);
        let (found, turns) = &mut self.settling.limited;
        if *found / RETRY != now / RETRY {
            lane.older.retry();
        }
        if *found != now || *turns == TURNS {
            (*found, *turns) = (now, 0);
            lane.limit_older();
        }
        *turns += 1;
    }

    /// Nothing can be freed any more: settles some older slots, for what they lead to may be dead. False if none
    /// of those that were looked at could be settled.
    pub(super) fn settle_any(&mut self, lane: &Lane) -> bool {
        (0..SEGMENTS_PER_TURN).any(|_| {
            let Some(number) = lane.older.any() else { return false };
            let (settled, _) = self.settle_segment(lane, number, 0);
            if settled == 0 {
                lane.older.pass_over(number);
            }
            settled > 0
        })
    }

    /// Settles older slots that lead into a segment, from an offset on, some if that takes many reads. The answer
    /// is how many, and where to go on. A segment in which some are left, because they cannot be read and may not
    /// be lost, is passed over.
    fn settle_segment(
        &mut self,
        lane: &Lane,
        number: SegmentNumber,
        from: usize,
    ) -> (usize, Option<usize>) {
        if !lane.older.lead_into(number) {
            return (0, None);
        }
        let (settled, next) = match lane.log.summary_of(number) {
            Ok(Some(summary)) => (self.settle_by_summary(lane, number, &summary), None),
            Ok(None) | Err(_) => self.settle_by_records(lane, number, from),
        };
        if next.is_none() && lane.older.lead_into(number) {
            lane.older.pass_over(number);
        }
        (settled, next)
    }

    fn settle_by_summary(
        &mut self,
        lane: &Lane,
        number: SegmentNumber,
        summary: &Summary,
    ) -> usize {
        let mut entries = summary.entries.iter().peekable();
        let mut settled = 0;
        self.participant.tick();
        for address in lane.older.in_segment(number, 0, usize::MAX) {
            let offset = address.offset() as u32;
            while entries.next_if(|entry| entry.offset < offset).is_some() {}
            if let Some(entry) = entries.next_if(|entry| entry.offset == offset) {
                lane.settle_older_at(address, &Key::of_hash(entry.hash), entry.size as usize);
                settled += 1;
            }
        }
        self.participant.sleep();
        settled
    }

    fn settle_by_records(
        &mut self,
        lane: &Lane,
        number: SegmentNumber,
        from: usize,
    ) -> (usize, Option<usize>) {
        let addresses = lane.older.in_segment(number, from, READS_PER_TURN);
        let (mut settled, mut unreadable) = (0, HashSet::new());
        for &address in &addresses {
            let Ok(read) = lane.log.read_record(address) else {
                unreadable.insert(address);
                continue;
            };
            // SAFETY: the bytes were checked to begin with one whole record.
            let record = unsafe { Record::at(read.as_ptr(), || 0) };
            let key = Key::new(record.key(), lane.options.hash_seed);
            self.participant.tick();
            lane.settle_older_at(address, &key, record.size());
            self.participant.sleep();
            settled += 1;
        }
        if !unreadable.is_empty() && !lane.may_lose_nothing() {
            settled += unreadable.len();
            self.give_up_older(lane, number, &unreadable);
        }
        let last = addresses.last().filter(|_| addresses.len() == READS_PER_TURN);
        (settled, last.map(|last| last.offset() + 1))
    }

    /// What older slots lead to cannot be read: it is as good as evicted.
    fn give_up_older(&self, lane: &Lane, number: SegmentNumber, lost: &HashSet<Address>) {
        // It may be readable after a restart: until then it counts as what hides older versions.
        lane.keep_ends(number, lost.iter().map(|address| address.offset() as u32).collect());
        for stripe in 0..lane.index.stripe_count() {
            lane.index.take_slots(
                stripe,
                |slot| lost.contains(&slot.address()),
                |_| {
                    lane.log.note_death(number);
                    bump(&self.counters.unreadable, 1);
                },
            );
        }
        lost.iter().for_each(|&address| lane.older.forget(&lane.log, address));
    }
}
