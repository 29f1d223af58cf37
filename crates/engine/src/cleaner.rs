//! The cleaner: makes room before writers need it, and has the next frame's memory ready.
//!
//! In this order: segments with nothing alive, segments that have expired whole, segments that are
//! mostly dead (what is alive in them moves on: hot overwrites do not push other items out), and
//! only then eviction by S3-FIFO over segments. Probation segments are the oldest writes: what was
//! read at least twice moves to the survivors, the rest goes and leaves a ghost. A survivor that was
//! read since goes round once more.
//!
//! The cleaner takes one stripe's lock at a time and never waits while it holds one.
//! Source of the policy: J. Yang et al., "FIFO queues are all you need for cache eviction", SOSP
//! 2023; of the choice among half-dead segments: M. Rosenblum, J. Ousterhout, "The design and
//! implementation of a log-structured file system", 1992.

mod ends;
mod frames;
mod tiers;
pub(crate) mod walk;

use crate::dead_maps::MapWalk;
use crate::durability::{Changes, Durable};
use crate::key::Key;
use crate::lane::Lane;
use crate::stats::Counters;
use crate::{UnixSeconds, WhenFull};
use ends::Ends;
use frames::Resident;
use larder_log::{Claim, Participant, Sealed, SegmentNumber, Stream};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::thread;
use std::time::Duration;
use walk::{at, expired, frequency_after, keeps};

/// Probation may hold one in so many bytes before its oldest segment is looked at.
const PROBATION_SHARE: u64 = 10;
/// Frames that writers should find ready.
pub(crate) const READY_FRAMES: usize = 2;
/// Of the store's places, one in so many should be ready for writers, within limits.
const PLACES_SHARE: usize = 64;
/// The most places that are kept ready.
const MAX_READY_PLACES: usize = 16;
/// Segments by which cleaning may exceed the budget before it waits.
const CLEANING_OVERDRAFT: usize = 1;
/// A segment is cleaned instead of another being evicted when it is alive up to this share.
const CLEAN_BELOW: f64 = 0.6;
/// In refuse mode nothing is evicted, so segments that are alive up to this share are cleaned.
const CLEAN_BELOW_WHEN_REFUSING: f64 = 0.95;
/// When deletes and updates have used much of their reserve, so are segments that are alive up to this share.
/// All segments together hold less dead then than the reserve of either has room for.
const CLEAN_BELOW_FOR_RESERVE: f64 = 0.99;
/// With a store, a segment whose frame is wanted is cleaned instead if it is alive up to this share:
/// what is overwritten often never gets to lie on the device only.
const CLEAN_INSTEAD_OF_DROPPING: f64 = 0.4;
/// So many bytes of segments are swept for expired items in a second at most: about a hundredth of a
/// processor with small items.
const SWEEP_BYTES: usize = 64 << 20;
/// Segments that may turn out to be unreadable before a turn gives up.
const UNREADABLE: usize = 8;
/// How often the quiescent period is asked for while somebody waits for it.
const POLL: Duration = Duration::from_micros(50);
/// How often otherwise: an old table or frame that is given back late hurts nobody.
const IDLE_POLL: Duration = Duration::from_millis(5);
/// A reservation for a large value that nobody came back for is dropped after so long.
const WANTED_FOR: Duration = Duration::from_millis(200);

/// What one step of cleaning achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A segment went into quarantine.
    Freed,
    /// Something can be freed when the last appenders of a segment are done.
    Later,
    /// A segment could not be read: others are tried before it is again.
    Unreadable,
    /// Nothing can be freed.
    Nothing,
}

/// What is done with the live records of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// All move on in the same stream.
    Keep,
    /// S3-FIFO decides.
    Evict,
    /// All move on, to the lower device but for a few that were read lately.
    Cool,
    /// Only expired ones go; the segment stays.
    Sweep,
}

/// What is done with a segment of which stream.
#[derive(Clone, Copy, Debug)]
struct Task {
    stream: Stream,
    fate: Fate,
    /// Its records can be copied: not a jumbo's that is not in memory.
    whole: bool,
}

/// The cleaner's own state.
#[derive(Debug)]
pub(crate) struct Cleaner {
    counters: Arc<Counters>,
    pub(crate) participant: Participant,
    /// What it moved and is not durable; only in sync mode.
    changes: Option<Arc<Changes>>,
    /// The walk for dead maps that is under way.
    pub(crate) map_walk: Option<MapWalk>,
    /// What keeps segments with ends from being freed.
    pub(crate) ends: Ends,
    /// Segments that have expired whole, to be cleaned.
    expired: Vec<(Stream, Sealed)>,
    /// Segments with records that cannot be read and may not be lost, and which use of them: they stay.
    pub(crate) kept: HashMap<SegmentNumber, u32>,
    /// Bytes of the segment that is being moved to the lower device that may stay on the fast one.
    may_stay: usize,
    /// The segment that was swept last, and the second of the last sweep.
    sweep_at: SegmentNumber,
    swept: UnixSeconds,
    /// For how long nobody has waited while memory or places were wanted.
    wanted_for: Duration,
    /// How many values were dropped in this second that had just been read.
    redropped: (UnixSeconds, u32),
    /// Hits that had been counted when a frame was dropped last.
    hits: u64,
}

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
    fn new(lane: &Lane) -> Self {
        Cleaner {
            counters: lane.new_counters(),
            participant: lane.epochs.join(),
            changes: lane.durable.as_ref().filter(|d| d.is_sync()).map(Durable::new_changes),
            map_walk: None,
            ends: Ends::default(),
            expired: Vec::new(),
            kept: HashMap::new(),
            may_stay: 0,
            sweep_at: 0,
            swept: 0,
            wanted_for: Duration::ZERO,
            redropped: (0, 0),
            hits: 0,
        }
    }

    /// Does what is to be done now; the answer is how long to wait before the next turn, `None` for
    /// until somebody asks.
    fn turn(&mut self, lane: &Lane) -> Option<Duration> {
        let _turn = lane.cleaning.lock().unwrap_or_else(PoisonError::into_inner);
        let number = lane.turns.fetch_add(1, Ordering::AcqRel) + 1;
        lane.log.prepare_frame();
        let warming = lane.warm_one();
        self.reap(lane);
        self.sweep(lane);
        let mapping = self.make_dead_maps(lane);
        let expiring = self.clean_expired(lane);
        let (mut last, mut unreadable) = (Step::Freed, 0);
        while matches!(last, Step::Freed | Step::Unreadable)
            && unreadable < UNREADABLE
            && self.must_free(lane)
            && !overdrawn(lane)
        {
            last = self.step(lane);
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
        if lane.log.take_copy_want() && !self.must_free(lane) {
            self.free_frame_for_copies(lane);
        }
        let cooled = !overdrawn(lane) && !must_free_frames(lane) && self.cool(lane);
        let short = self.must_free(lane);
        let coming = lane.log.quarantined() > 0 || lane.log.dropped_frames() > 0;
        let stuck = matches!(last, Step::Nothing | Step::Unreadable);
        let starved = short && stuck && !coming;
        // That the index may lead to no more items concerns new ones only.
        let full = starved || index_full && refuses;
        if full {
            lane.found_nothing.store(number, Ordering::Release);
        }
        if starved {
            self.ends.note_stuck();
        }
        let claim = if starved { hopeless(lane) } else { Claim::Write };
        lane.set_full(full.then_some(claim));
        lane.frames_full.store(starved && must_free_frames(lane), Ordering::Relaxed);
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
        if warming || mapping || expiring {
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
        if lane.log.has_room_to_spare() {
            return 0;
        }
        let settled = lane.log.settled();
        let sealed = [Stream::Hot, Stream::Survivors].map(|stream| lane.log.sealed(stream));
        let gain = |&sealed: &Sealed| {
            let number = sealed.segment;
            let segment = lane.log.segment(number);
            let (alive, filled) = (lane.log.live(number), segment.filled());
            let cleanable = f64::from(alive) <= f64::from(filled) * CLEAN_BELOW_WHEN_REFUSING
                && !segment.is_jumbo()
                && self.can_clean(lane, sealed, settled);
            if cleanable { lane.log.reclaimable(number) } else { 0 }
        };
        let gain: u64 = sealed.iter().flatten().map(gain).sum();
        gain as usize / lane.log.segment_size()
    }

    /// Whether there is too little room for the writers, counting what is on its way.
    fn must_free(&self, lane: &Lane) -> bool {
        must_free_frames(lane) || must_free_places(lane)
    }

    /// Frees one segment, the cheapest first.
    fn step(&mut self, lane: &Lane) -> Step {
        let now = lane.now.load(Ordering::Relaxed);
        let undoings = lane.undoings();
        let settled = lane.log.settled();
        let places = must_free_places(lane);
        let mut unsettled = false;
        let mut best: Option<(f64, Stream, SegmentNumber)> = None;
        let mut oldest: [Option<Sealed>; 2] = [None; 2];
        let mut resident = Resident::new(lane);
        let mut live = [0u64; 2];
        for stream in [Stream::Hot, Stream::Survivors] {
            for sealed in lane.log.sealed(stream) {
                let segment = lane.log.segment(sealed.segment);
                if !lane.log.is_final(sealed, settled) {
                    unsettled = true;
                    continue;
                }
                if !places && segment.frame().is_null() {
                    continue;
                }
                let alive = lane.log.live(sealed.segment);
                if alive == 0 {
                    return self.free_dead(lane, stream, sealed.segment, undoings);
                }
                if self.stays(lane, sealed.segment) {
                    continue;
                }
                if segment.expired_whole(now) {
                    return self.clean(lane, stream, sealed.segment, Fate::Evict);
                }
                oldest[stream as usize].get_or_insert(sealed);
                live[stream as usize] += u64::from(alive);
                resident.note(lane, stream, sealed, alive);
                if let Some(benefit) = self.benefit(lane, sealed.segment, alive, now, places)
                    && best.is_none_or(|(most, ..)| benefit > most)
                {
                    best = Some((benefit, stream, sealed.segment));
                }
            }
        }
        if let Some((_, stream, number)) = best
            && self.clean(lane, stream, number, Fate::Keep) == Step::Freed
        {
            return Step::Freed;
        }
        if unsettled && let Some(durable) = &lane.durable {
            durable.want_commit();
        }
        if lane.durable.is_some() && (!places || must_free_frames(lane)) {
            if self.free_frame(lane, &resident) || self.drop_just_read(lane) {
                return Step::Freed;
            }
            if unsettled || lane.log.dropped_frames() > 0 {
                return Step::Later;
            }
        }
        if lane.options.engine.when_full == WhenFull::Refuse {
            return if unsettled { Step::Later } else { Step::Nothing };
        }
        let otherwise = if unsettled { Step::Later } else { Step::Nothing };
        self.evict_oldest(lane, oldest, live).unwrap_or(otherwise)
    }

    /// Evicts from the segment that S3-FIFO looks at next: of each stream the oldest is given, if there
    /// is one, and its live bytes.
    fn evict_oldest(
        &mut self,
        lane: &Lane,
        oldest: [Option<Sealed>; 2],
        [new, old]: [u64; 2],
    ) -> Option<Step> {
        let [hot, survivors] = oldest;
        let hot = hot.map(|sealed| (Stream::Hot, sealed));
        let survivors = survivors.map(|sealed| (Stream::Survivors, sealed));
        let probation = new * PROBATION_SHARE > new + old;
        let (stream, sealed) = match probation {
            _ if lane.log.has_lower() => tiers::older(lane, hot, survivors),
            true => hot.or(survivors),
            false => survivors.or(hot),
        }?;
        Some(self.clean(lane, stream, sealed.segment, Fate::Evict))
    }

    /// Evicts from the segment that S3-FIFO looks at next, wherever its records are: there are more
    /// items than the index may lead to.
    fn evict_coldest(&mut self, lane: &Lane) {
        let (settled, undoings) = (lane.log.settled(), lane.undoings());
        let mut oldest: [Option<Sealed>; 2] = [None; 2];
        let mut live = [0u64; 2];
        for stream in [Stream::Hot, Stream::Survivors] {
            for sealed in lane.log.sealed(stream) {
                let lasts = lane.log.is_final(sealed, settled);
                if lasts && lane.log.live(sealed.segment) == 0 {
                    self.free_dead(lane, stream, sealed.segment, undoings);
                } else if lasts && !self.stays(lane, sealed.segment) {
                    oldest[stream as usize].get_or_insert(sealed);
                }
                live[stream as usize] += u64::from(lane.log.live(sealed.segment));
            }
        }
        if self.evict_oldest(lane, oldest, live).is_none()
            && let Some(durable) = &lane.durable
        {
            durable.want_commit();
        }
    }

    /// Whether the segment holds what cannot be read and may not be lost.
    fn stays(&self, lane: &Lane, number: SegmentNumber) -> bool {
        let generation = lane.log.segment(number).generation();
        self.kept.get(&number).is_some_and(|&kept| kept == generation)
    }

    /// Whether a segment can be cleaned: nobody appends to it, it is durable, and it may go.
    fn can_clean(&self, lane: &Lane, sealed: Sealed, settled: u64) -> bool {
        lane.log.is_final(sealed, settled) && !self.stays(lane, sealed.segment)
    }

    /// What cleaning a segment gains for its cost, `(1-u)·age/(1+u)` with the live share u; `None`
    /// if too much of it is alive.
    fn benefit(
        &self,
        lane: &Lane,
        number: SegmentNumber,
        alive: u32,
        now: UnixSeconds,
        places: bool,
    ) -> Option<f64> {
        let segment = lane.log.segment(number);
        if segment.is_jumbo() {
            return None;
        }
        // Measured against what was written, not against the segment's size: every cleaning must
        // make dead bytes disappear, or it would go round for ever.
        let share = f64::from(alive) / f64::from(segment.filled().max(1));
        let below = match lane.options.engine.when_full {
            // Its frame could simply go.
            _ if lane.durable.is_some() && !places => CLEAN_INSTEAD_OF_DROPPING,
            WhenFull::Evict => CLEAN_BELOW,
            WhenFull::Refuse if is_reserve_short(lane) => CLEAN_BELOW_FOR_RESERVE,
            WhenFull::Refuse => CLEAN_BELOW_WHEN_REFUSING,
        };
        let age = f64::from(now.saturating_sub(segment.born())) + 1.0;
        (share <= below).then(|| (1.0 - share) * age / (1.0 + share))
    }

    /// A segment without a live record needs no look at the index.
    fn free_dead(
        &mut self,
        lane: &Lane,
        stream: Stream,
        number: SegmentNumber,
        undoings: u64,
    ) -> Step {
        let freed = !lane.log.begin_cleaning(stream, number)
            || lane.quarantine(stream, number, Vec::new(), undoings);
        if freed { Step::Freed } else { Step::Later }
    }

    /// Takes every record of a sealed segment out of the index or somewhere else, and the segment
    /// into quarantine.
    fn clean(&mut self, lane: &Lane, stream: Stream, number: SegmentNumber, fate: Fate) -> Step {
        if fate == Fate::Evict && self.promote_jumbo(lane, stream, number) {
            return Step::Freed;
        }
        if !lane.log.begin_cleaning(stream, number) {
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
            Err(_) => {
                lane.keep_ends(number, ends);
                lane.log.postpone_cleaning(stream, number);
                // What stays is not looked at again: the turn goes on with the others.
                if self.stays(lane, number) { Step::Freed } else { Step::Unreadable }
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
            let keep = keeps(slot, stream) && !expired(record, now);
            if keep {
                guard.replace(place, slot.with_frequency(frequency_after(slot, stream)), 0);
            }
            keep
        });
        self.participant.sleep();
        if kept {
            lane.log.promote(stream, number);
        }
        kept
    }

    /// Once a second: takes expired items out of segments that have some, in turn.
    fn sweep(&mut self, lane: &Lane) {
        let now = lane.now.load(Ordering::Relaxed);
        if now == self.swept {
            return;
        }
        self.swept = now;
        if lane.durable.is_some() {
            // What has expired still hides older versions: it goes when its segment is cleaned.
            self.expired = expired_segments(lane, now);
            return;
        }
        let settled = lane.log.settled();
        let mut due: Vec<(SegmentNumber, Stream)> = Vec::new();
        for stream in [Stream::Hot, Stream::Survivors] {
            for sealed in lane.log.sealed(stream) {
                let earliest = lane.log.segment(sealed.segment).min_expiry();
                if sealed.sealed <= settled && earliest != 0 && earliest <= now {
                    due.push((sealed.segment, stream));
                }
            }
        }
        due.sort_unstable_by_key(|&(number, _)| (number <= self.sweep_at, number));
        due.truncate((SWEEP_BYTES / lane.log.segment_size()).max(1));
        for (number, stream) in due {
            self.sweep_at = number;
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
        let settled = lane.log.settled();
        for stream in [Stream::Hot, Stream::Survivors] {
            for sealed in lane.log.sealed(stream) {
                let keeps_ends = !store.kept_ends(sealed.segment).is_empty();
                if keeps_ends && self.can_clean(lane, sealed, settled) {
                    self.clean(lane, stream, sealed.segment, Fate::Keep);
                    return;
                }
            }
        }
    }

    /// Cleans one segment that has expired whole, which may take a read. The answer is whether there
    /// are more.
    fn clean_expired(&mut self, lane: &Lane) -> bool {
        let now = lane.now.load(Ordering::Relaxed);
        if overdrawn(lane) {
            return false;
        }
        while let Some((stream, sealed)) = self.expired.pop() {
            let settled = lane.log.settled();
            if lane.log.segment(sealed.segment).expired_whole(now)
                && self.can_clean(lane, sealed, settled)
            {
                self.clean(lane, stream, sealed.segment, Fate::Evict);
                return !self.expired.is_empty();
            }
        }
        false
    }
}

/// Sealed segments of a store in which everything has expired, the oldest last.
fn expired_segments(lane: &Lane, now: UnixSeconds) -> Vec<(Stream, Sealed)> {
    let of = |stream| {
        let expired = |sealed: &Sealed| lane.log.segment(sealed.segment).expired_whole(now);
        lane.log
            .sealed(stream)
            .into_iter()
            .filter(expired)
            .map(move |sealed| (stream, sealed))
            .rev()
    };
    of(Stream::Hot).chain(of(Stream::Survivors)).collect()
}

/// Whether there are too few frames for the writers, counting those on their way.
fn must_free_frames(lane: &Lane) -> bool {
    let coming = lane.log.quarantined() + lane.log.dropped_frames();
    let excess = lane.budget.excess().div_ceil(lane.log.segment_size() as u64) as usize;
    lane.log.available_frames() + coming < READY_FRAMES + excess
}

/// Whether there are too few places in the store for the writers, counting those on their way.
fn must_free_places(lane: &Lane) -> bool {
    let available = lane.log.available_numbers(Claim::Write);
    available.saturating_add(lane.log.quarantined()) < wanted_places(lane)
}

/// Whether of the reserve that values may not take too few places are left, counting those on their way.
fn is_reserve_short(lane: &Lane) -> bool {
    let available = lane.log.available_numbers(Claim::Grow);
    // The store may grow between the two.
    let reserve = lane.log.spared(Claim::Write).saturating_sub(lane.log.spared(Claim::Grow));
    available.saturating_add(lane.log.quarantined()) < reserve.min(READY_FRAMES)
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
