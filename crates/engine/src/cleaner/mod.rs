//! The cleaner: frees memory and places before writers need them, and prepares memory for the next
//! frame.
//!
//! The cleaner first frees segments without live records, then segments whose records have all
//! expired, then mostly dead ones. It moves the live records of a mostly dead segment to another
//! segment, so that overwrites of hot keys do not evict other items. Only then does it evict, by
//! S3-FIFO over segments. The segments of new writes are the probation queue; among them, segments
//! [without reads](probation) go first. Records that were read (with a store, at least twice) move
//! to the survivors; the others are evicted and leave a ghost. An item at the end of the survivors'
//! queue stays for another round if its read frequency is above 0. Each round lowers the frequency
//! by 1.
//!
//! Long before memory is full, segments that are nearly empty are [recycled](recycle), so that
//! writers use their memory before untouched memory.
//!
//! The cleaner holds at most one stripe's lock and never waits while it holds that lock. Source of
//! the policy: J. Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023; of the
//! choice among half-dead segments: M. Rosenblum, J. Ousterhout, "The design and implementation of
//! a log-structured file system", 1992.

pub(crate) mod dead_maps;
mod ends;
mod frames;
pub(crate) mod ghost;
mod limiters;
pub(crate) mod map_walk;
mod probation;
mod recycle;
pub(crate) mod state;
mod tiers;
pub(crate) mod walk;

use crate::WhenFull;
use crate::key::Key;
use crate::lane::{DurableLane, Lane};
use crate::lock::lock;
use crate::stats::bump;
pub(crate) use state::{Cleaner, READY_FRAMES, Step};

use larder_log::{Among, Candidate, Claim, SegmentNumber, Stream, Tier};
use state::{
    CLEAN_BELOW_WHEN_REFUSING, Fate, MAX_READY_PLACES, PLACES_SHARE, PROBATION_SHARE, Task,
    benefit, cleanable_percent,
};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;
use walk::{at, expired, frequency_after, keeps};

/// The largest number of segments by which cleaning may exceed the memory budget before it waits
/// for freed memory.
const CLEANING_OVERDRAFT: usize = 1;
/// The largest number of bytes of segments swept for expired items per second. With small items,
/// such a sweep takes about 1% of a processor.
const SWEEP_BYTES: usize = 64 << 20;
/// Both devices of a lane, for queries of the usage table.
const BOTH_TIERS: &[Tier] = &[Tier::Fast, Tier::Lower];
/// The largest number of unreadable segments per turn; after that the turn takes no more steps.
const UNREADABLE: usize = 8;
/// Interval at which the cleaner checks whether sessions have passed a quiescent point, while a
/// call waits for space or too little is free for writers.
const POLL: Duration = Duration::from_micros(50);
/// Like [`POLL`], at other times. Releasing an old table or frame late does no harm.
const IDLE_POLL: Duration = Duration::from_millis(5);
/// Time for which a reservation of memory or places stays after the last call has stopped waiting
/// for it.
const WANTED_FOR: Duration = Duration::from_millis(200);

/// Starts the cleaner's thread. The thread holds no strong reference to the lane while it waits, so
/// it does not keep the lane alive.
pub(crate) fn spawn(lane: &Arc<Lane>) -> io::Result<()> {
    let weak = Arc::downgrade(lane);
    let cleaner = Cleaner::new(lane);
    let builder = thread::Builder::new().name("cleaner".into());
    let handle = builder.spawn(move || run(&weak, cleaner))?;
    lane.set_cleaner(handle.thread().clone());
    Ok(())
}

fn run(weak: &Weak<Lane>, mut cleaner: Cleaner) {
    loop {
        let Some(lane) = weak.upgrade() else { return };
        let wait = cleaner.turn(&lane);
        drop(lane);
        match wait {
            Some(time) => thread::park_timeout(time),
            None => thread::park(),
        }
    }
}

impl Lane {
    /// Runs one turn of the cleaner, for engines without threads. Returns true if the cleaner wants
    /// another turn soon.
    pub(crate) fn clean(&self, state: &mut Option<Cleaner>) -> bool {
        let cleaner = state.get_or_insert_with(|| Cleaner::new(self));
        cleaner.turn(self).is_some()
    }
}

impl Cleaner {
    /// Runs one turn. Returns the time until the next turn; `None` to wait for a request.
    fn turn(&mut self, lane: &Lane) -> Option<Duration> {
        let _turn = lock(&lane.cleaning);
        let number = lane.turns.fetch_add(1, Ordering::AcqRel) + 1;
        let durable = lane.durable();
        if !self.recycle(lane) {
            lane.log.prepare_frame();
        }
        let warming = durable.is_some_and(DurableLane::warm_one);
        self.reap(lane);
        self.sweep(lane);
        let mapping = durable.is_some_and(|lane| self.make_dead_maps(lane));
        let expiring = self.clean_expired(lane);
        let (mut last, mut unreadable) = (Step::Freed, 0);
        self.unreadable_at = (0, 0);
        let reported = self.have_reported(lane);
        while matches!(last, Step::Freed | Step::Unreadable)
            && unreadable < UNREADABLE
            && self.must_free(lane)
            && !overdrawn(lane)
        {
            last = self.step(lane, reported);
            unreadable += usize::from(last == Step::Unreadable);
            self.reap(lane);
        }
        if !overdrawn(lane) && lane.ends_must_go.swap(false, Ordering::Relaxed) {
            self.clean_kept_ends(lane);
        }
        let index_full = !overdrawn(lane) && lane.index.take_full();
        let refuses = lane.options.when_full == WhenFull::Refuse;
        if index_full && !refuses {
            self.evict_coldest(lane);
        }
        if lane.log.copies().take_want()
            && !self.must_free(lane)
            && let Some(durable) = durable
        {
            self.free_frame_for_copies(durable);
        }
        let cooled = !overdrawn(lane) && !must_free_frames(lane) && self.cool(lane);
        let short = self.must_free(lane);
        if !short {
            self.reported_by = None;
        }
        let coming = lane.log.quarantined() > 0 || lane.log.dropped_frames() > 0;
        let stuck = matches!(last, Step::Nothing | Step::Unreadable);
        let starved = short && stuck && !coming && reported;
        // With `--when-full refuse`, a full index also makes the lane full, but only for the least
        // urgent claim (`Claim::Write`).
        let full = starved || index_full && refuses;
        if full {
            lane.found_nothing.store(number, Ordering::Release);
        }
        if starved {
            self.ends.note_stuck();
        }
        let claim = if starved { hopeless(lane) } else { Claim::Write };
        if full || reported {
            lane.set_full(full.then_some(claim));
            lane.frames_full.store(starved && must_free_frames(lane), Ordering::Relaxed);
        }
        lane.log.shrink();
        let pending = coming || cooled || last == Step::Later;
        let waiting = lane.waiting();
        // This comes after `shrink`, which gives back all frames ready for writers while the budget
        // is exceeded. So waiting writers are woken only if their frame fits into the budget.
        let room = lane.log.has_frame_for_writers()
            && waiting.is_some_and(|claim| lane.log.available_places(claim) > 0);
        // A call that waits for memory for a read needs no place in the store.
        let readable = lane.budget.wanted() > 0 && lane.budget.excess() == 0;
        if room || full || readable {
            lane.wake_waiting();
        }
        if coming
            && (lane.log.available_places(Claim::Write) < wanted_places(lane)
                || tiers::is_fast_short(lane, 0))
        {
            // The emptied places become free with a commit. Without this request, that commit would
            // come only when a writer already waits for the places.
            lane.want_commit();
        }
        // Writers are served first, because resolving older slots may read from the device.
        let settling = durable.is_some_and(|lane| self.resolve_many(lane));
        let poll = lane.waiting().is_some() || (pending && short);
        let wanted = self.drop_abandoned_reservations(lane, if poll { POLL } else { IDLE_POLL });
        if poll {
            // With a store, freed places come back with a commit. The cleaner requests that commit,
            // because the session that would request it may be the one that waits for space.
            if coming {
                lane.want_commit();
            }
            return Some(POLL);
        }
        if wanted {
            return Some(IDLE_POLL);
        }
        if let Some(durable) = durable.filter(|durable| durable.state.is_sync()) {
            durable.log.prepare_place();
        }
        if warming || settling || mapping || expiring {
            return Some(Duration::ZERO);
        }
        let tidying = lane.index.tidy(lane.now.load(Ordering::Relaxed));
        (pending || tidying || lane.index.has_retired()).then_some(IDLE_POLL)
    }

    /// Drops a reservation of memory or places after no call has waited for it for [`WANTED_FOR`].
    /// Returns false if there is no reservation. `wait` is the time until the next turn.
    fn drop_abandoned_reservations(&mut self, lane: &Lane, wait: Duration) -> bool {
        let wanted = lane.budget.wanted() > 0 || lane.log.wanted_places() > 0;
        if !wanted || lane.waiting().is_some() {
            self.wanted_for = Duration::ZERO;
            return wanted;
        }
        self.wanted_for += wait;
        if self.wanted_for > WANTED_FOR {
            lane.budget.unwant();
            lane.log.unwant_places();
        }
        wanted
    }

    fn reap(&mut self, lane: &Lane) {
        if lane.log.keeps_reserves() {
            lane.log.set_reclaimable(self.reclaimable_places(lane));
        }
        lane.log.reap();
        lane.index.reap();
    }

    /// Returns the number of places that cleaning could gain from dead bytes in sealed segments.
    /// Counts only segments with at most [`CLEAN_BELOW_WHEN_REFUSING`] percent of live bytes.
    fn reclaimable_places(&self, lane: &Lane) -> usize {
        let gain = lane.log.usage().gain(CLEAN_BELOW_WHEN_REFUSING);
        gain as usize / lane.log.segment_size()
    }

    /// Returns true if nothing must be freed. Otherwise asks all threads how many bytes they have
    /// made dead in each segment, and returns true once all have reported. Without these reports,
    /// the cleaner may not know of segments that it could free at no cost.
    fn have_reported(&mut self, lane: &Lane) -> bool {
        if !self.must_free(lane) {
            self.reported_by = None;
            return true;
        }
        let by = *self.reported_by.get_or_insert_with(|| lane.log.want_counts());
        let reported = lane.epochs.passed(by);
        if reported {
            // The reports do not include records that die later, so the next turn must ask again.
            self.reported_by = None;
        }
        reported
    }

    /// Returns true if there is too little room for writers, even counting room that is about to
    /// become free.
    fn must_free(&self, lane: &Lane) -> bool {
        must_free_frames(lane) || must_free_places(lane)
    }

    /// Frees the segment or the frame that is cheapest to free. Evicts only if all threads have
    /// `reported` how many bytes they made dead in each segment.
    fn step(&mut self, lane: &Lane, reported: bool) -> Step {
        let now = lane.now.load(Ordering::Relaxed);
        let undo_count = lane.undo_count();
        let places = must_free_places(lane);
        let among = if places { Among::All } else { Among::Resident };
        let percent = cleanable_percent(lane, places);
        let usage = lane.log.usage();
        if let Some((stream, number)) = usage.dead(among) {
            drop(usage);
            return self.free_dead(lane, stream, number, undo_count);
        }
        if let Some((stream, at)) = usage.expired(now, among, self.unreadable_at) {
            drop(usage);
            let step = self.clean(lane, stream, at.1, Fate::Evict);
            if step == Step::Unreadable {
                self.unreadable_at = at;
            }
            return step;
        }
        let unsettled = usage.is_waiting();
        let best = usage.best(BOTH_TIERS, among, percent, |it| benefit(it, now));
        drop(usage);
        if let Some(Candidate { stream, segment, .. }) = best
            && self.clean(lane, stream, segment, Fate::Keep) == Step::Freed
        {
            return Step::Freed;
        }
        if unsettled {
            lane.want_commit();
        }
        let durable = lane.durable();
        if let Some(durable) = durable
            && (!places || must_free_frames(lane))
        {
            if self.free_frame(durable) {
                return Step::Freed;
            }
            match self.drop_just_read(durable) {
                Step::Nothing => (),
                step => return step,
            }
            if unsettled || lane.log.dropped_frames() > 0 {
                return Step::Later;
            }
        }
        if lane.options.when_full == WhenFull::Refuse && self.resolve_any(lane) {
            return Step::Later;
        }
        let otherwise = if unsettled || !reported { Step::Later } else { Step::Nothing };
        // With a store, only a lack of places justifies an eviction, because memory can be freed
        // without an eviction.
        let evicts = lane.options.when_full == WhenFull::Evict && (places || durable.is_none());
        if !evicts || !reported {
            return otherwise;
        }
        self.evict_oldest(lane, among).unwrap_or(otherwise)
    }

    /// Evicts from the segment that S3-FIFO chooses among those that `among` selects.
    fn evict_oldest(&mut self, lane: &Lane, among: Among) -> Option<Step> {
        let usage = lane.log.usage();
        let [hot, survivors] = [Stream::Hot, Stream::Survivors]
            .map(|stream| usage.oldest(stream, among).map(|number| (stream, number)));
        let [new, old] = [Stream::Hot, Stream::Survivors].map(|stream| usage.live(stream, among));
        drop(usage);
        let probation = new * PROBATION_SHARE > new + old;
        let (stream, number) = match probation {
            _ if lane.log.has_lower() => tiers::older(lane, hot, survivors),
            true => {
                self.oldest_unread(lane).map(|number| (Stream::Hot, number)).or(hot).or(survivors)
            }
            false => survivors.or(hot),
        }?;
        Some(self.clean(lane, stream, number, Fate::Evict))
    }

    /// Evicts from the segment that S3-FIFO chooses, in memory or not, because the index is full.
    /// Frees dead segments first.
    fn evict_coldest(&mut self, lane: &Lane) {
        let undo_count = lane.undo_count();
        let mut freed = Step::Freed;
        while freed == Step::Freed
            && let Some((stream, number)) = { lane.log.usage().dead(Among::All) }
        {
            freed = self.free_dead(lane, stream, number, undo_count);
        }
        if self.evict_oldest(lane, Among::All).is_none() {
            lane.want_commit();
        }
    }

    /// Frees a segment without live records. Does not access the index.
    fn free_dead(
        &mut self,
        lane: &Lane,
        stream: Stream,
        number: SegmentNumber,
        undo_count: u64,
    ) -> Step {
        if lane.log.begin_cleaning(number).is_none() {
            return Step::Freed;
        }
        // The usage table may be out of date, so the live bytes are checked again. If an undo
        // revives a record after this check, `quarantine` detects that.
        if lane.log.live(number) > 0 {
            lane.log.abandon_cleaning(stream, number);
            return Step::Later;
        }
        let freed = lane.quarantine(stream, number, Vec::new(), undo_count);
        bump(&self.counters.dead_segments, freed.into());
        if freed { Step::Freed } else { Step::Later }
    }

    /// Moves or removes every record of a sealed segment, and puts the segment into quarantine.
    pub(crate) fn clean(
        &mut self,
        lane: &Lane,
        stream: Stream,
        number: SegmentNumber,
        fate: Fate,
    ) -> Step {
        if fate == Fate::Evict && self.promote_jumbo(lane, stream, number) {
            return Step::Freed;
        }
        if lane.log.begin_cleaning(number).is_none() {
            return Step::Freed;
        }
        let (mut ends, undo_count) = (Vec::new(), lane.undo_count());
        let filled = lane.log.segment(number).filled();
        match self.walk(lane, Task { stream, fate, whole: true }, number, &mut ends) {
            Ok(Some(alive_bytes)) => match lane.quarantine(stream, number, ends, undo_count) {
                true => {
                    bump(&self.counters.cleaned_segments, 1);
                    bump(&self.counters.evicted_segments, (fate == Fate::Evict).into());
                    bump(&self.counters.cleaned_bytes, filled.into());
                    bump(&self.counters.cleaned_live_bytes, alive_bytes);
                    Step::Freed
                }
                // A commit has failed since `undo_count` was read, so the segment may have live
                // records again.
                false => Step::Later,
            },
            Ok(None) => {
                lane.keep_ends(number, ends);
                lane.log.abandon_cleaning(stream, number);
                Step::Nothing
            }
            Err(error) => {
                lane.keep_ends(number, ends);
                if !walk::must_stay(&error) {
                    lane.log.postpone_cleaning(stream, number);
                    return Step::Unreadable;
                }
                // The segment cannot be read completely, and the cleaner does not try it again
                // while it has live records. Nothing was freed, but `Freed` lets the turn continue
                // with other segments.
                lane.log.keep_unreadable(stream, number);
                Step::Freed
            }
        }
    }

    /// Keeps a jumbo that S3-FIFO would keep: its record stays where it is, and its segment moves
    /// to the survivors' queue. Returns true if the jumbo is kept.
    pub(super) fn promote_jumbo(
        &mut self,
        lane: &Lane,
        stream: Stream,
        number: SegmentNumber,
    ) -> bool {
        if !lane.log.segment(number).is_jumbo() {
            return false;
        }
        // The segment is loaded before the participant is awake, because a device read would hold
        // up the epochs.
        let Ok(loaded) = lane.log.load_if_absent(number) else { return false };
        self.participant.tick();
        let image = loaded.as_ref().map(|loaded| &loaded.image[..]);
        // SAFETY: the segment is sealed and settled, and only the cleaner frees segments.
        let head = unsafe { lane.log.records(number, image) }.next();
        let kept = head.is_some_and(|(address, record)| {
            let key = Key::new(record.key(), lane.options.hash_seed);
            let guard = lane.index.lock(&key);
            let Some((place, slot, ())) = guard.find(&key, at(address)) else { return false };
            let now = lane.now.load(Ordering::Relaxed);
            let keep = keeps(lane, slot, stream) && !expired(record, now);
            if keep {
                guard.replace(place, slot.with_frequency(frequency_after(slot, stream)), 0);
            }
            keep
        });
        self.participant.sleep();
        if kept {
            lane.log.promote(number);
        }
        kept
    }

    /// Removes expired items once a second, from the segments with the earliest expiries. With a
    /// store, only makes `clean_expired` search again for segments whose records have all expired.
    fn sweep(&mut self, lane: &Lane) {
        let now = lane.now.load(Ordering::Relaxed);
        if now == self.swept {
            return;
        }
        self.swept = now;
        if lane.has_store() {
            // With a store, expired items still hide older versions. So they are removed only when
            // their segment is cleaned.
            self.expired = Some((0, 0));
            return;
        }
        let most = (SWEEP_BYTES / lane.log.segment_size()).max(1);
        let due: Vec<_> = lane.log.usage().partly_expired(now).take(most).collect();
        for (stream, number) in due {
            if lane.log.segment(number).expired_whole(now) {
                self.clean(lane, stream, number, Fate::Evict);
            } else {
                let task = Task { stream, fate: Fate::Sweep, whole: true };
                // This walk cannot fail: without a store, nothing is read from a device.
                let _ = self.walk(lane, task, number, &mut Vec::new());
            }
        }
    }

    /// Cleans one segment with kept ends. These are items that were removed without a newer version
    /// while their segment stayed.
    fn clean_kept_ends(&mut self, lane: &Lane) {
        let Some(store) = lane.log.store() else { return };
        let keeping = store.segments_with_kept_ends();
        let ready =
            |&number: &SegmentNumber| lane.log.usage().ready(number).map(|stream| (stream, number));
        if let Some((stream, number)) = keeping.iter().find_map(ready) {
            self.clean(lane, stream, number, Fate::Keep);
        }
    }

    /// Cleans one segment whose records have all expired. May read from the device. Returns true if
    /// there may be more such segments.
    fn clean_expired(&mut self, lane: &Lane) -> bool {
        let now = lane.now.load(Ordering::Relaxed);
        if overdrawn(lane) {
            return false;
        }
        let Some(after) = self.expired else { return false };
        let next = { lane.log.usage().expired(now, Among::All, after) };
        self.expired = next.map(|(_, at)| at);
        if let Some((stream, (_, number))) = next {
            self.clean(lane, stream, number, Fate::Evict);
        }
        self.expired.is_some()
    }
}

/// Returns true if there are too few frames for writers, even counting those that are about to
/// become free.
fn must_free_frames(lane: &Lane) -> bool {
    let coming = lane.log.quarantined_frames() + lane.log.dropped_frames();
    let excess = lane.budget.excess().div_ceil(lane.log.segment_size() as u64) as usize;
    lane.log.available_frames() + coming < READY_FRAMES + excess
}

/// Returns true if the store has too few places for writers, even counting those that are about to
/// become free.
fn must_free_places(lane: &Lane) -> bool {
    let available = lane.log.available_places(Claim::Write);
    available.saturating_add(lane.log.quarantined()) < wanted_places(lane)
}

/// Returns the most urgent claim that finds no space. The caller has found that nothing can be
/// reclaimed.
fn hopeless(lane: &Lane) -> Claim {
    let finds_nothing = |&claim: &Claim| lane.log.available_places(claim) == 0;
    match must_free_frames(lane) {
        true => Claim::Delete,
        false => [Claim::Delete, Claim::Update, Claim::Grow]
            .into_iter()
            .find(finds_nothing)
            .unwrap_or(Claim::Write),
    }
}

/// Returns the number of places in the store that writers should find ready. An emptied place is
/// free only two commits later, so more places than frames are kept ready. In refuse mode, no more
/// places than frames are kept ready. Items may not be evicted in this mode, so for more places the
/// cleaner would have to clean nearly full segments.
fn wanted_places(lane: &Lane) -> usize {
    let share = match (lane.options.when_full, lane.log.store()) {
        (WhenFull::Evict, Some(store)) => store.segment_count() / PLACES_SHARE,
        _ => 0,
    };
    share.clamp(READY_FRAMES, MAX_READY_PLACES).max(lane.log.wanted_places())
}

/// Returns true if the cleaner must not move more records now. Memory in use already exceeds the
/// budget too far, and freed memory comes back only after every participant has passed a quiescent
/// point.
fn overdrawn(lane: &Lane) -> bool {
    let allowed = (CLEANING_OVERDRAFT * lane.log.segment_size()) as u64;
    lane.log.quarantined() > 0 && lane.budget.used() > lane.budget.limit() + allowed
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
