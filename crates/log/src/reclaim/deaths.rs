//! Tracks which segments hold dead records that are not marked as dead on the device.
//!
//! An *end* (a tombstone, or an expired or evicted item) hides older versions of its key from a
//! recovery. Once the segment of the end is freed, a recovery could bring back an older version in
//! another segment, unless the dead map of that segment marks it.
//!
//! A hidden version has *died*: it left the index because of a successor in some commit. So for
//! each segment, the log notes a commit number: the earliest commit in which a record of the
//! segment may have died without a mark in its durable dead map. This number decides whether the
//! segment *blocks* a segment S with ends: it blocks S if the number is not greater than the last
//! commit of S, unless it was opened after S was closed. S can be freed once no segment blocks S.
//!
//! None of this reads a segment, and a segment in which nothing dies costs nothing.
//!
//! Invariant: the noted commit is never later than the earliest unmarked death of the segment. It
//! may be earlier. That costs only a needless dead map.

use crate::address::SegmentNumber;
use crate::commit::{BegunMap, MapState};
use crate::log::{DurableLog, Log};
use crate::rule::Rule;
use crate::segment::State;
use crate::store::Store;
use crate::store::death_lists::{NEVER, OPEN, Unmarked};
use crate::sync::atomic::{Ordering, fence};
use crate::sync::{MutexGuard, lock};

/// The largest number of segments that need a dead map that [`DurableLog::needs_maps`] counts. If
/// there are as many, it uses an upper bound instead: the number of segments with unmarked deaths.
const COUNTED: usize = 1024;

/// A segment with ends that waits to be freed, and the facts that decide whether deaths in other
/// segments block it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingEnds {
    pub(crate) number: SegmentNumber,
    last_commit: u64,
    closed: u64,
}

/// Returns true if segment `number` blocks the segment `ending` from being freed. The caller has
/// checked that the commit noted for `number` is not later than the last commit of `ending`. This
/// function checks that `number` was not opened after `ending` was closed.
fn blocks(store: &Store, number: SegmentNumber, ending: &WaitingEnds) -> bool {
    let opened = store.entry(number).deaths.opened.load(Ordering::Acquire);
    number != ending.number && opened <= ending.closed
}

impl Log {
    /// Notes that a record of the segment has left the index. The caller has changed the index and
    /// still holds the stripe's lock. If the caller appended the successor, its
    /// [`Appending`](crate::Appending) must still live. So the successor's commit cannot settle
    /// before the death is noted.
    #[inline]
    pub fn note_death(&self, number: SegmentNumber) {
        let Some(store) = &self.store else { return };
        let deaths = &store.entry(number).deaths;
        // Only the earliest death is noted, so the later ones need no lock.
        if deaths.noted.load(Ordering::Relaxed) == NEVER {
            note_first_death(store, number);
        }
    }

    /// Notes that no more appends follow in the segment.
    pub(crate) fn note_closed(&self, number: SegmentNumber) {
        if let Some(store) = &self.store {
            // A segment that the load below does not count is opened later. A thread that appends
            // to it passes the fence in `appending_seen` after the fence below. So the thread sees
            // that this segment is closed, and appends nothing here any more.
            fence(Ordering::SeqCst);
            let opened = store.deaths.opened_segments.load(Ordering::SeqCst);
            store.entry(number).deaths.closed.store(opened, Ordering::Release);
            lock(&store.deaths.holders).close(number, &store.entry(number).deaths);
        }
    }

    /// Notes that the segment holds one more end: a record that hides older versions without being
    /// hidden itself. As a tombstone it would take `bytes`.
    pub fn note_end(&self, number: SegmentNumber, bytes: usize) {
        self.segment(number).note_end();
        self.count_end(number, bytes);
    }

    /// Like [`Log::note_end`], but does not change [`has_ends`](crate::Segment::has_ends). For a
    /// segment that the cleaner is emptying: the cleaner has a list of the segment's ends itself.
    pub fn count_end(&self, number: SegmentNumber, bytes: usize) {
        if let Some(store) = &self.store {
            store.entry(number).end_bytes.fetch_add(bytes as u32, Ordering::Relaxed);
        }
    }
}

impl<'a> DurableLog<'a> {
    /// Notes that a recovery found records in the segment that are superseded or cannot be read.
    pub fn note_recovered_deaths(self, number: SegmentNumber) {
        if Rule::RecoveryNotesDeaths.is_broken() || !self.segment(number).is_in_use() {
            return;
        }
        let entry = self.store.entry(number);
        // A successor is never in an earlier commit than its predecessor, so no record died before
        // the commit `opened`. Deaths up to the commit `cover` are marked.
        let opened = entry.opened.load(Ordering::Relaxed);
        self.restore_deaths(number, opened.max(self.store.cover(number) + 1));
    }

    /// Sets the earliest unmarked death of a recovered segment, as defined at
    /// [`DurableLog::earliest_death`].
    pub(crate) fn restore_deaths(self, number: SegmentNumber, earliest: u64) {
        let mut unmarked = lock(&self.store.deaths.unmarked);
        self.store.entry(number).deaths.noted.store(earliest, Ordering::Release);
        unmarked.update(number, &self.store.entry(number).deaths);
    }

    /// Returns the earliest commit in which a record of the segment may have died without a mark in
    /// its durable dead map; `u64::MAX` if none did.
    pub fn earliest_death(self, number: SegmentNumber) -> u64 {
        self.store.entry(number).deaths.earliest()
    }

    /// Registers all unmarked deaths, to be forgotten once the superblock's fence is durable. The
    /// fence is above the seqs of all these records, so no crash can bring them back after that.
    /// Called while a `flush_all` empties the index. So all records of these segments are dead, and
    /// no further death in them is forgotten by mistake.
    pub fn fence_deaths(self) {
        let changes = lock(&self.store.changing).changes();
        let mut fenced = lock(&self.store.deaths.fenced);
        let unmarked = lock(&self.store.deaths.unmarked);
        let now = unmarked.until(NEVER).map(|number| (number, self.segment(number).generation()));
        fenced.changes = changes;
        fenced.segments.extend(now);
    }

    /// Forgets deaths below a fence that has become durable.
    pub(crate) fn settle_fence(self) {
        let durable = lock(&self.store.changing).durable();
        let mut fenced = lock(&self.store.deaths.fenced);
        if fenced.segments.is_empty() || fenced.changes > durable {
            return;
        }
        for (number, generation) in fenced.segments.drain(..) {
            if self.segment(number).generation() == generation {
                let mut unmarked = lock(&self.store.deaths.unmarked);
                self.store.entry(number).deaths.clear();
                unmarked.update(number, &self.store.entry(number).deaths);
            }
        }
    }

    /// Returns true if a segment counts as opened after the other one was closed.
    #[cfg(all(test, loom))]
    pub(crate) fn is_opened_after(self, number: SegmentNumber, other: SegmentNumber) -> bool {
        let deaths = |number| &self.store.entry(number).deaths;
        let closed = deaths(other).closed.load(Ordering::Relaxed);
        deaths(number).opened.load(Ordering::Relaxed) > closed
    }

    /// Returns the facts that decide whether deaths in other segments block freeing this one.
    pub(crate) fn ending(self, number: SegmentNumber) -> WaitingEnds {
        let entry = self.store.entry(number);
        WaitingEnds {
            number,
            last_commit: entry.last_commit.load(Ordering::Relaxed),
            closed: entry.deaths.closed.load(Ordering::Acquire),
        }
    }

    /// Locks and returns the segments with unmarked deaths.
    fn unmarked_deaths(self) -> MutexGuard<'a, Unmarked> {
        self.settle_fence();
        lock(&self.store.deaths.unmarked)
    }

    /// Returns true if freeing `ending` could bring back versions that it hides.
    pub(crate) fn is_blocked(self, ending: &WaitingEnds) -> bool {
        self.blocker(ending).is_some()
    }

    /// Returns the first segment with records that `ending` may hide and that no dead map marks.
    fn blocker(self, ending: &WaitingEnds) -> Option<SegmentNumber> {
        let unmarked = self.unmarked_deaths();
        // The search visits segments with deaths up to `ending.last_commit`. Nearly all of them are
        // older than `ending` and so block it, so the search ends at one of the first.
        unmarked.until(ending.last_commit).find(|&number| {
            self.count_looks(1);
            blocks(self.store, number, ending)
        })
    }

    /// Returns the segment that blocks freeing `number`. Of several, returns the one with the
    /// earliest unmarked deaths.
    pub fn blocker_of(self, number: SegmentNumber) -> Option<SegmentNumber> {
        self.blocker(&self.ending(number))
    }

    /// Returns the segments in quarantine that wait only for dead maps of other segments. Omits
    /// segments that were [given up](Log::expect_no_place).
    pub fn blocked_segments(self) -> Vec<SegmentNumber> {
        let mut waiting = self.waiting_endings();
        let quarantine = lock(&self.quarantine);
        waiting.retain(|ending| !quarantine.is_given_up(ending.number));
        drop(quarantine);
        waiting.iter().filter(|ending| self.is_blocked(ending)).map(|it| it.number).collect()
    }

    /// Returns at most `most` segments that need a dead map, those with the earliest deaths first.
    /// A segment needs one while it blocks another segment. A blocked segment cannot be freed, or
    /// the tombstones that were copied into it cannot be dropped. Ignores deaths after the commit
    /// `until`, and segments whose map was begun already.
    pub fn blocking_segments(self, until: u64, most: usize) -> Vec<SegmentNumber> {
        let mut endings = self.waiting_endings();
        endings.extend(self.last_held());
        let Some(last) = endings.iter().map(|ending| ending.last_commit).max() else {
            return Vec::new();
        };
        let unmarked = self.unmarked_deaths();
        let (mut staying, mut leaving) = (Vec::new(), Vec::new());
        for number in unmarked.until(until.min(last)) {
            self.count_looks(1);
            let deaths = &self.store.entry(number).deaths;
            let earliest = deaths.earliest();
            let blocks_any = deaths.mapping.load(Ordering::Acquire) == NEVER
                && endings
                    .iter()
                    .any(|it| earliest <= it.last_commit && blocks(self.store, number, it));
            if blocks_any {
                match self.segment(number).state() {
                    State::Quarantine => leaving.push(number),
                    _ => staying.push(number),
                }
                if staying.len() == most {
                    break;
                }
            }
        }
        drop(unmarked);
        // A segment in quarantine needs a map only if it and others in quarantine wait for each
        // other in a cycle.
        if staying.is_empty() && self.freeable().is_empty() {
            leaving.truncate(most);
            return leaving;
        }
        staying
    }

    /// Returns true if [`DurableLog::blocking_segments`] has at least `wanted` entries. If `wanted`
    /// exceeds `COUNTED`, the result may be true although there are fewer.
    pub fn needs_maps(self, until: u64, wanted: usize) -> bool {
        self.blocking_segments(until, wanted.min(COUNTED)).len() >= wanted.min(COUNTED)
            && lock(&self.store.deaths.unmarked).0.len() >= wanted
    }

    /// Returns the two sealed *holders* (segments with copied tombstones) that were closed last. A
    /// segment that blocks some holder also blocks all holders that were closed later, except
    /// itself. So the two are enough to find every segment that blocks a holder.
    fn last_held(self) -> Vec<WaitingEnds> {
        let holders = lock(&self.store.deaths.holders);
        let sealed = holders.closed().rev().filter(|&number| self.is_sealed(number));
        sealed.take(2).map(|number| self.ending(number)).collect()
    }

    fn is_sealed(self, number: SegmentNumber) -> bool {
        self.segment(number).state() == State::Sealed
    }

    /// Returns about how many bytes the ends of a segment take as tombstones.
    pub fn end_bytes(self, number: SegmentNumber) -> u64 {
        self.store.entry(number).end_bytes.load(Ordering::Relaxed).into()
    }

    /// Counts a tombstone of `bytes` that was copied into the segment. The copy counts as alive
    /// while it hides older versions.
    pub fn hold_end(self, number: SegmentNumber, bytes: usize) {
        self.note_end(number, bytes);
        if self.store.entry(number).held_bytes.fetch_add(bytes as u32, Ordering::Relaxed) == 0 {
            lock(&self.store.deaths.holders).add(number, &self.store.entry(number).deaths);
        }
    }

    /// Returns true if copied tombstones take room that dead maps could free.
    pub fn holds_ends(self) -> bool {
        !lock(&self.store.deaths.holders).0.is_empty()
    }

    /// Counts the copied tombstones of a segment as dead. Called when they hide nothing any more,
    /// and before the segment is cut, because they may lie behind the cut.
    pub(crate) fn release_ends_of(self, number: SegmentNumber) {
        lock(&self.store.deaths.holders).remove(number, &self.store.entry(number).deaths);
        let bytes = self.store.entry(number).held_bytes.swap(0, Ordering::Relaxed);
        self.segment(number).kill(bytes as usize);
        self.note_changed(number);
    }

    /// Counts copied tombstones as dead once they hide nothing any more.
    pub fn release_held_ends(self) {
        loop {
            let next =
                lock(&self.store.deaths.holders).closed().find(|&number| self.is_sealed(number));
            let Some(number) = next else { return };
            self.count_looks(1);
            match self.blocker(&self.ending(number)) {
                None => self.release_ends_of(number),
                Some(blocker) => {
                    // The blocker also blocks every later holder, but no segment blocks itself. So
                    // the blocker is the only other holder whose tombstones may hide nothing any
                    // more.
                    let holds = self.store.entry(blocker).held_bytes.load(Ordering::Relaxed) > 0;
                    if holds && self.is_sealed(blocker) && !self.is_blocked(&self.ending(blocker)) {
                        self.release_ends_of(blocker);
                    }
                    return;
                }
            }
        }
    }

    /// Begins the dead map of a segment. Deaths after this call are noted separately, for a later
    /// map. The caller waits until [`DurableLog::map_state`] is [`MapState::Ready`], and then asks
    /// the index which records are alive.
    pub fn begin_map(self, number: SegmentNumber) -> BegunMap {
        let (segment, deaths) = (self.segment(number), &self.store.entry(number).deaths);
        let (generation, cover) = (segment.generation(), self.store.commits.settled());
        {
            // Threads that read `noted` and `mapping` also hold this lock. So they never see the
            // moment at which a death is in neither of these two fields.
            let mut unmarked = lock(&self.store.deaths.unmarked);
            let noted = deaths.noted.swap(NEVER, Ordering::AcqRel);
            deaths.mapping.fetch_min(noted, Ordering::AcqRel);
            unmarked.update(number, &self.store.entry(number).deaths);
        }
        // The length is read after the swap. So it includes every record whose death was noted
        // before the swap.
        let until = segment.filled();
        BegunMap { segment: number, generation, cover, until }
    }

    /// Returns whether the index can be asked which records of the segment are alive.
    pub fn map_state(self, begun: &BegunMap) -> MapState {
        let segment = self.segment(begun.segment);
        // The meta of a jumbo that a failed commit has cut says that the place is free.
        let is_cut = segment.is_jumbo() && segment.filled() == 0;
        let is_over = segment.generation() != begun.generation;
        if is_over || is_cut || self.is_marked_free(begun.segment) {
            return MapState::Gone;
        }
        // A failed commit may have cut the segment, which then ends before `until`.
        match segment.is_durable(begun.until.min(segment.filled())) {
            true => MapState::Ready,
            false => MapState::Undurable,
        }
    }

    /// Gives up a map: the deaths it would have marked are noted again.
    pub fn abandon_map(self, number: SegmentNumber, generation: u32) {
        let deaths = &self.store.entry(number).deaths;
        let mut unmarked = lock(&self.store.deaths.unmarked);
        if self.segment(number).generation() == generation {
            let earliest = deaths.mapping.swap(NEVER, Ordering::AcqRel);
            deaths.noted.fetch_min(earliest, Ordering::AcqRel);
            unmarked.update(number, &self.store.entry(number).deaths);
        }
    }
}

#[cold]
fn note_first_death(store: &Store, number: SegmentNumber) {
    if Rule::DeathsAreNoted.is_broken() {
        return;
    }
    // The successor's commit cannot settle before the append ends, so that commit is later than the
    // last settled one.
    let late = if Rule::DeathsAreNotedEarly.is_broken() { 2 } else { 0 };
    let commit = store.commits.settled() + 1 + late;
    let mut unmarked = lock(&store.deaths.unmarked);
    store.entry(number).deaths.noted.fetch_min(commit, Ordering::AcqRel);
    unmarked.update(number, &store.entry(number).deaths);
}

impl Store {
    /// Clears the segment's deaths for a new generation, before anything is appended to it.
    pub(crate) fn begin_deaths(&self, number: SegmentNumber) {
        let deaths = &self.entry(number).deaths;
        let order = self.deaths.opened_segments.fetch_add(1, Ordering::SeqCst) + 1;
        self.forget_ends(number);
        let mut unmarked = lock(&self.deaths.unmarked);
        deaths.clear();
        unmarked.update(number, &self.entry(number).deaths);
        drop(unmarked);
        deaths.opened.store(order, Ordering::Release);
        deaths.closed.store(OPEN, Ordering::Release);
    }

    /// Forgets the deaths that the segment's dead map marks, because this map is durable now.
    pub(crate) fn settle_map(&self, number: SegmentNumber, cover: u64) {
        let entry = self.entry(number);
        entry.cover.fetch_max(cover, Ordering::Relaxed);
        let mut unmarked = lock(&self.deaths.unmarked);
        entry.deaths.mapping.store(NEVER, Ordering::Release);
        unmarked.update(number, &self.entry(number).deaths);
    }

    /// Forgets the deaths of a segment that is durably free: no crash brings its records back.
    pub(crate) fn settle_free(&self, number: SegmentNumber) {
        let mut unmarked = lock(&self.deaths.unmarked);
        self.entry(number).deaths.clear();
        unmarked.update(number, &self.entry(number).deaths);
        drop(unmarked);
        self.forget_ends(number);
    }

    fn forget_ends(&self, number: SegmentNumber) {
        lock(&self.deaths.holders).remove(number, &self.entry(number).deaths);
        self.entry(number).end_bytes.store(0, Ordering::Relaxed);
        self.entry(number).held_bytes.store(0, Ordering::Relaxed);
    }
}
