//! The cleaner: makes room before writers need it, and has the next frame's memory ready.
//!
//! In this order: segments with nothing alive, segments that have expired whole, segments that are
//! mostly dead (what is alive in them moves on: hot overwrites do not push other items out), and
//! only then eviction by S3-FIFO over segments. Probation segments are the oldest writes, and before them
//! those that [nobody reads](probation): what was read moves to the survivors, the rest goes and leaves a
//! ghost. A survivor that was read since goes round once more.
//!
//! Long before memory is full, segments that are nearly empty are [recycled](recycle): writers use their memory
//! before untouched memory.
//!
//! The cleaner takes one stripe's lock at a time and never waits while it holds one.
//! Source of the policy: J. Yang et al., "FIFO queues are all you need for cache eviction", SOSP
//! 2023; of the choice among half-dead segments: M. Rosenblum, J. Ousterhout, "The design and
//! implementation of a log-structured file system", 1992.

pub(crate) mod dead_maps;
mod ends;
mod frames;
pub(crate) mod ghost;
pub(crate) mod map_walk;
mod probation;
mod recycle;
pub(crate) mod state;
mod tiers;
pub(crate) mod walk;

use crate::WhenFull;
use crate::durability::Durable;
use crate::key::Key;
use crate::lane::Lane;
pub(crate) use state::{Cleaner, READY_FRAMES, Step};

use larder_log::{Among, Candidate, Claim, SegmentNumber, Stream, Tier};
use state::{
    CLEAN_BELOW_WHEN_REFUSING, Fate, MAX_READY_PLACES, PLACES_SHARE, PROBATION_SHARE, Task,
    benefit, cleanable_percent,
};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::thread;
use std::time::Duration;
use walk::{at, expired, frequency_after, keeps};

/// Segments by which cleaning may exceed the budget before it waits.
const CLEANING_OVERDRAFT: usize = 1;
/// So many bytes of segments are swept for expired items in a second at most: about a hundredth of a
/// processor with small items.
const SWEEP_BYTES: usize = 64 << 20;
/// What lies on either device of a lane.
const BOTH_TIERS: &[Tier] = &[Tier::Fast, Tier::Lower];
/// Segments that may turn out to be unreadable before a turn gives up.
const UNREADABLE: usize = 8;
/// How often the quiescent period is asked for while somebody waits for it.
const POLL: Duration = Duration::from_micros(50);
/// How often otherwise: an old table or frame that is given back late hurts nobody.
const IDLE_POLL: Duration = Duration::from_millis(5);
/// A reservation for a large value that nobody came back for is dropped after so long.
const WANTED_FOR: Duration = Duration::from_millis(200);

/// Starts the cleaner's thread. It holds no handle of the engine while it waits, so that the engine
/// ends with its last user.
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
    /// One turn of the cleaner, for engines without a cleaner thread. The answer is whether it wants
    /// another turn soon.
    pub(crate) fn clean(&self, state: &mut Option<Cleaner>) -> bool {
        let cleaner = state.get_or_insert_with(|| Cleaner::new(self));
        cleaner.turn(self).is_some()
    }
}

impl Cleaner {
    /// Does what is to be done now; the answer is how long to wait before the next turn, `None` for
    /// until somebody asks.
    fn turn(&mut self, lane: &Lane) -> Option<Duration> {
        let _turn = lane.cleaning.lock().unwrap_or_else(PoisonError::into_inner);
        let number = lane.turns.fetch_add(1, Ordering::AcqRel) + 1;
        if !self.recycle(lane) {
            lane.log.prepare_frame();
        }
        let warming = lane.warm_one();
        self.reap(lane);
        self.sweep(lane);
        let mapping = self.make_dead_maps(lane);
        let expiring = self.clean_expired(lane);
        let (mut last, mut unreadable) = (Step::Freed, 0);
        self.unreadable_at = (0, 0);
        let told = self.have_told(lane);
        while matches!(last, Step::Freed | Step::Unreadable)
            && unreadable < UNREADABLE
            && self.must_free(lane)
            && !overdrawn(lane)
        {
            last = self.step(lane, told);
            unreadable += usize::from(last == Step::Unreadable);
            self.reap(lane);
        }
        if !overdrawn(lane) && lane.ends_must_go.swap(false, Ordering::Relaxed) {
            self.clean_kept_ends(lane);
        }
        let index_full = !overdrawn(lane) && lane.index.take_full();
        let refuses = lane.options.engine.when_full == WhenFull::Refuse;
        if index_full && !refuses {
            self.evict_coldest(lane);
        }
        if lane.log.copies().take_want() && !self.must_free(lane) {
            self.free_frame_for_copies(lane);
        }
        let cooled = !overdrawn(lane) && !must_free_frames(lane) && self.cool(lane);
        let short = self.must_free(lane);
        if !short {
            self.told_by = None;
        }
        let coming = lane.log.quarantined() > 0 || lane.log.dropped_frames() > 0;
        let stuck = matches!(last, Step::Nothing | Step::Unreadable);
        let starved = short && stuck && !coming && told;
        // That the index may lead to no more items concerns new ones only.
        let full = starved || index_full && refuses;
        if full {
            lane.found_nothing.store(number, Ordering::Release);
        }
        if starved {
            self.ends.note_stuck();
        }
        let claim = if starved { hopeless(lane) } else { Claim::Write };
        if full || told {
            lane.set_full(full.then_some(claim));
            lane.frames_full.store(starved && must_free_frames(lane), Ordering::Relaxed);
        }
        lane.log.shrink();
        let pending = coming || cooled || last == Step::Later;
        let waiting = lane.waiting();
        let room = lane.log.available_frames() > 0
            && waiting.is_some_and(|claim| lane.log.available_numbers(claim) > 0)
            && lane.budget.excess() == 0;
        // Who wants to read needs no place in the store.
        let readable = lane.budget.wanted() > 0 && lane.budget.excess() == 0;
        if room || full || readable {
            lane.wake_waiting();
        }
        if coming
            && (lane.log.available_numbers(Claim::Write) < wanted_places(lane)
                || tiers::is_fast_short(lane, 0))
            && let Some(durable) = &lane.durable
        {
            // They are free when that is durable: before a writer has to wait for it.
            durable.want_commit();
        }
        // Writers come first: this may read.
        let settling = self.settle_many(lane);
        let poll = lane.waiting().is_some() || (pending && short);
        let wanted = self.forget_wishes(lane, if poll { POLL } else { IDLE_POLL });
        if poll {
            // With a store what was freed comes back by a commit, and whoever would ask for one may
            // be the one who waits here.
            if coming && let Some(durable) = &lane.durable {
                durable.want_commit();
            }
            return Some(POLL);
        }
        if wanted {
            return Some(IDLE_POLL);
        }
        if lane.durable.as_ref().is_some_and(Durable::is_sync) {
            lane.log.prepare_place();
        }
        if warming || settling || mapping || expiring {
            return Some(Duration::ZERO);
        }
        let tidying = lane.index.tidy(lane.now.load(Ordering::Relaxed));
        (pending || tidying || lane.index.has_retired()).then_some(IDLE_POLL)
    }

    /// Drops a reservation that nobody comes back for; false if there is none. The next turn comes after
    /// `wait`.
    fn forget_wishes(&mut self, lane: &Lane, wait: Duration) -> bool {
        let wanted = lane.budget.wanted() > 0 || lane.log.wanted_numbers() > 0;
        if !wanted || lane.waiting().is_some() {
            self.wanted_for = Duration::ZERO;
            return wanted;
        }
        self.wanted_for += wait;
        if self.wanted_for > WANTED_FOR {
            lane.budget.unwant();
            lane.log.unwant_numbers();
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

    /// Places that cleaning at its usual price could make of what is dead in sealed segments.
    fn reclaimable_places(&self, lane: &Lane) -> usize {
        let gain = lane.log.usage().gain(CLEAN_BELOW_WHEN_REFUSING);
        gain as usize / lane.log.segment_size()
    }

    /// Whether threads have told what they made dead before something had to be freed: until then, what could be
    /// freed for nothing may not be known.
    fn have_told(&mut self, lane: &Lane) -> bool {
        if !self.must_free(lane) {
            self.told_by = None;
            return true;
        }
        let by = *self.told_by.get_or_insert_with(|| lane.log.want_counts());
        let told = lane.epochs.passed(by);
        if told {
            // Later deaths need a new question.
            self.told_by = None;
        }
        told
    }

    /// Whether there is too little room for the writers, counting what is on its way.
    fn must_free(&self, lane: &Lane) -> bool {
        must_free_frames(lane) || must_free_places(lane)
    }

    /// Frees one segment, the cheapest first. Nothing is evicted before threads have `told` what they made dead.
    fn step(&mut self, lane: &Lane, told: bool) -> Step {
        let now = lane.now.load(Ordering::Relaxed);
        let undoings = lane.undoings();
        let places = must_free_places(lane);
        let among = if places { Among::All } else { Among::Resident };
        let percent = cleanable_percent(lane, places);
        let usage = lane.log.usage();
        if let Some((stream, number)) = usage.dead(among) {
            drop(usage);
            return self.free_dead(lane, stream, number, undoings);
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
        if unsettled && let Some(durable) = &lane.durable {
            durable.want_commit();
        }
        if lane.durable.is_some() && (!places || must_free_frames(lane)) {
            if self.free_frame(lane) || self.drop_just_read(lane) {
                return Step::Freed;
            }
            if unsettled || lane.log.dropped_frames() > 0 {
                return Step::Later;
            }
        }
        if lane.options.engine.when_full == WhenFull::Refuse && self.settle_any(lane) {
            return Step::Later;
        }
        let otherwise = if unsettled || !told { Step::Later } else { Step::Nothing };
        if lane.options.engine.when_full == WhenFull::Refuse || !told {
            return otherwise;
        }
        self.evict_oldest(lane, among).unwrap_or(otherwise)
    }

    /// Evicts from the segment that S3-FIFO looks at next.
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

    /// Evicts from the segment that S3-FIFO looks at next, wherever its records are: there are more
    /// items than the index may lead to.
    fn evict_coldest(&mut self, lane: &Lane) {
        let undoings = lane.undoings();
        let mut freed = Step::Freed;
        while freed == Step::Freed
            && let Some((stream, number)) = { lane.log.usage().dead(Among::All) }
        {
            freed = self.free_dead(lane, stream, number, undoings);
        }
        if self.evict_oldest(lane, Among::All).is_none()
            && let Some(durable) = &lane.durable
        {
            durable.want_commit();
        }
    }

    /// A segment without a live record needs no look at the index.
    fn free_dead(
        &mut self,
        lane: &Lane,
        stream: Stream,
        number: SegmentNumber,
        undoings: u64,
    ) -> Step {
        if lane.log.begin_cleaning(number).is_none() {
            return Step::Freed;
        }
        // The table may be late. What is undone from here on, `quarantine` finds out.
        if lane.log.live(number) > 0 {
            lane.log.abandon_cleaning(stream, number);
            return Step::Later;
        }
        let freed = lane.quarantine(stream, number, Vec::new(), undoings);
        if freed { Step::Freed } else { Step::Later }
    }

    /// Takes every record of a sealed segment out of the index or somewhere else, and the segment
    /// into quarantine.
    fn clean(&mut self, lane: &Lane, stream: Stream, number: SegmentNumber, fate: Fate) -> Step {
        if fate == Fate::Evict && self.promote_jumbo(lane, stream, number) {
            return Step::Freed;
        }
        if lane.log.begin_cleaning(number).is_none() {
            return Step::Freed;
        }
        let (mut ends, undoings) = (Vec::new(), lane.undoings());
        match self.walk(lane, Task { stream, fate, whole: true }, number, &mut ends) {
            Ok(true) => match lane.quarantine(stream, number, ends, undoings) {
                true => Step::Freed,
                // A commit has failed meanwhile.
                false => Step::Later,
            },
            Ok(false) => {
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
                // It is not looked at again: the turn goes on with the others.
                lane.log.keep_unreadable(stream, number);
                Step::Freed
            }
        }
    }

    /// A jumbo that S3-FIFO would keep stays where it is and changes the queue.
    pub(super) fn promote_jumbo(
        &mut self,
        lane: &Lane,
        stream: Stream,
        number: SegmentNumber,
    ) -> bool {
        if !lane.log.segment(number).is_jumbo() {
            return false;
        }
        // Before the participant is awake: it may take a read.
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

    /// Once a second: takes expired items out of segments that have some, the longest expired first.
    fn sweep(&mut self, lane: &Lane) {
        let now = lane.now.load(Ordering::Relaxed);
        if now == self.swept {
            return;
        }
        self.swept = now;
        if lane.durable.is_some() {
            // What has expired still hides older versions: it goes when its segment is cleaned.
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
                // Without a store nothing is read.
                let _ = self.walk(lane, task, number, &mut Vec::new());
            }
        }
    }

    /// Cleans a segment that stays although records were removed from it without a newer version.
    fn clean_kept_ends(&mut self, lane: &Lane) {
        let Some(store) = lane.log.store() else { return };
        let keeping = store.segments_with_kept_ends();
        let ready =
            |&number: &SegmentNumber| lane.log.usage().ready(number).map(|stream| (stream, number));
        if let Some((stream, number)) = keeping.iter().find_map(ready) {
            self.clean(lane, stream, number, Fate::Keep);
        }
    }

    /// Cleans one segment that has expired whole, which may take a read. The answer is whether there
    /// are more.
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

/// Whether there are too few frames for the writers, counting those on their way.
fn must_free_frames(lane: &Lane) -> bool {
    let coming = lane.log.quarantined_frames() + lane.log.dropped_frames();
    let excess = lane.budget.excess().div_ceil(lane.log.segment_size() as u64) as usize;
    lane.log.available_frames() + coming < READY_FRAMES + excess
}

/// Whether there are too few places in the store for the writers, counting those on their way.
fn must_free_places(lane: &Lane) -> bool {
    let available = lane.log.available_numbers(Claim::Write);
    available.saturating_add(lane.log.quarantined()) < wanted_places(lane)
}

/// Nothing can be reclaimed: the most urgent claim that finds nothing.
fn hopeless(lane: &Lane) -> Claim {
    let finds_nothing = |&claim: &Claim| lane.log.available_numbers(claim) == 0;
    match must_free_frames(lane) {
        true => Claim::Delete,
        false => [Claim::Delete, Claim::Update, Claim::Grow]
            .into_iter()
            .find(finds_nothing)
            .unwrap_or(Claim::Write),
    }
}

/// Places in the store that writers should find ready. A place that was emptied is free two commits
/// later, so there are more of them than frames, unless that would push the cleaner to clean what is
/// nearly full of items that must be kept.
fn wanted_places(lane: &Lane) -> usize {
    let share = match (lane.options.engine.when_full, lane.log.store()) {
        (WhenFull::Evict, Some(store)) => store.segment_count() / PLACES_SHARE,
        _ => 0,
    };
    share.clamp(READY_FRAMES, MAX_READY_PLACES).max(lane.log.wanted_numbers())
}

/// Whether moving more would take too much memory beyond the budget before what was freed so far is
/// given back: then the quiescent period comes first.
fn overdrawn(lane: &Lane) -> bool {
    let allowed = (CLEANING_OVERDRAFT * lane.log.segment_size()) as u64;
    lane.log.quarantined() > 0 && lane.budget.used() > lane.budget.limit() + allowed
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
