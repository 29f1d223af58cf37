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

mod frames;
mod walk;

use crate::durability::{Changes, Durable};
use crate::engine::Engine;
use crate::key::Key;
use crate::stats::Counters;
use crate::{UnixSeconds, WhenFull};
use frames::Resident;
use larder_log::{Participant, Sealed, SegmentNumber, Stream};
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
/// A reservation for a large value that nobody came back for is dropped after so many idle polls.
const WANTED_POLLS: u32 = 40;

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
    /// Segments whose dead maps wait to be written, and the commit that they wait for.
    pub(crate) mapped: HashMap<SegmentNumber, u64>,
    /// Segments with records that cannot be read and may not be lost, and which use of them: they stay.
    pub(crate) kept: HashMap<SegmentNumber, u32>,
    /// The segment that was swept last, and the second of the last sweep.
    sweep_at: SegmentNumber,
    swept: UnixSeconds,
    idle_polls: u32,
    /// How many values were dropped in this second that had just been read.
    redropped: (UnixSeconds, u32),
    /// Hits that had been counted when a frame was dropped last.
    hits: u64,
}

/// Starts the cleaner's thread. It holds no handle of the engine while it waits, so that the engine
/// ends with its last user.
pub(crate) fn spawn(engine: &Arc<Engine>) -> io::Result<()> {
    let weak = Arc::downgrade(engine);
    let cleaner = Cleaner::new(engine);
    let builder = thread::Builder::new().name("cleaner".into());
    let handle = builder.spawn(move || run(&weak, cleaner))?;
    engine.set_cleaner(handle.thread().clone());
    Ok(())
}

fn run(weak: &Weak<Engine>, mut cleaner: Cleaner) {
    loop {
        let Some(engine) = weak.upgrade() else { return };
        let wait = cleaner.turn(&engine);
        drop(engine);
        match wait {
            Some(time) => thread::park_timeout(time),
            None => thread::park(),
        }
    }
}

impl Engine {
    /// One turn of the cleaner, for engines without a cleaner thread. The answer is whether it wants
    /// another turn soon.
    pub fn clean(&self, state: &mut ManualCleaner) -> bool {
        let cleaner = state.0.get_or_insert_with(|| Cleaner::new(self));
        cleaner.turn(self).is_some()
    }
}

/// The state of [`Engine::clean`].
#[derive(Debug, Default)]
pub struct ManualCleaner(Option<Cleaner>);

impl Cleaner {
    fn new(engine: &Engine) -> Self {
        Cleaner {
            counters: engine.new_counters(),
            participant: engine.epochs.join(),
            changes: engine.durable.as_ref().filter(|d| d.is_sync()).map(Durable::new_changes),
            mapped: HashMap::new(),
            kept: HashMap::new(),
            sweep_at: 0,
            swept: 0,
            idle_polls: 0,
            redropped: (0, 0),
            hits: 0,
        }
    }

    /// Does what is to be done now; the answer is how long to wait before the next turn, `None` for
    /// until somebody asks.
    fn turn(&mut self, engine: &Engine) -> Option<Duration> {
        let _turn = engine.cleaning.lock().unwrap_or_else(PoisonError::into_inner);
        engine.log.prepare_frame();
        let warming = engine.warm_one();
        self.reap(engine);
        self.sweep(engine);
        self.make_dead_maps(engine);
        let (mut last, mut unreadable) = (Step::Freed, 0);
        while matches!(last, Step::Freed | Step::Unreadable)
            && unreadable < UNREADABLE
            && self.must_free(engine)
            && !overdrawn(engine)
        {
            last = self.step(engine);
            unreadable += usize::from(last == Step::Unreadable);
            self.reap(engine);
        }
        if !overdrawn(engine) && engine.index.take_full() {
            self.evict_coldest(engine);
        }
        if engine.log.take_copy_want() && !self.must_free(engine) {
            self.free_frame_for_copies(engine);
        }
        let short = self.must_free(engine);
        let coming = engine.log.quarantined() > 0 || engine.log.dropped_frames() > 0;
        let stuck = matches!(last, Step::Nothing | Step::Unreadable);
        let full = short && stuck && !coming;
        engine.full.store(full, Ordering::Relaxed);
        engine.frames_full.store(full && must_free_frames(engine), Ordering::Relaxed);
        engine.log.shrink();
        let pending = coming || last == Step::Later;
        let room = engine.log.available_frames() > 0
            && engine.log.available_numbers() > 0
            && engine.budget.excess() == 0;
        // Who wants to read needs no place in the store.
        let readable = engine.budget.wanted() > 0 && engine.budget.excess() == 0;
        if room || full || readable {
            engine.wake_waiting();
        }
        if coming
            && engine.log.available_numbers() < wanted_places(engine)
            && let Some(durable) = &engine.durable
        {
            // They are free when that is durable: before a writer has to wait for it.
            durable.want_commit();
        }
        if engine.has_waiting() || (pending && short) {
            // With a store what was freed comes back by a commit, and whoever would ask for one may
            // be the one who waits here.
            if coming && let Some(durable) = &engine.durable {
                durable.want_commit();
            }
            return Some(POLL);
        }
        if engine.budget.wanted() > 0 {
            self.idle_polls += 1;
            if self.idle_polls > WANTED_POLLS {
                engine.budget.unwant();
            }
            return Some(IDLE_POLL);
        }
        self.idle_polls = 0;
        if warming {
            return Some(Duration::ZERO);
        }
        (pending || engine.index.has_retired()).then_some(IDLE_POLL)
    }

    fn reap(&mut self, engine: &Engine) {
        engine.log.reap();
        engine.index.reap();
    }

    /// Whether there is too little room for the writers, counting what is on its way.
    fn must_free(&self, engine: &Engine) -> bool {
        must_free_frames(engine) || must_free_places(engine)
    }

    /// Frees one segment, the cheapest first.
    fn step(&mut self, engine: &Engine) -> Step {
        let now = engine.now.load(Ordering::Relaxed);
        let undoings = engine.undoings();
        let settled = engine.log.settled();
        let places = must_free_places(engine);
        let mut unsettled = false;
        let mut best: Option<(f64, Stream, SegmentNumber)> = None;
        let mut oldest: [Option<Sealed>; 2] = [None; 2];
        let mut resident = Resident::new(engine);
        let mut live = [0u64; 2];
        for stream in [Stream::Hot, Stream::Survivors] {
            for sealed in engine.log.sealed(stream) {
                let segment = engine.log.segment(sealed.segment);
                if sealed.sealed > settled || !engine.log.is_settled(sealed.segment) {
                    unsettled = true;
                    continue;
                }
                if !places && segment.frame().is_null() {
                    continue;
                }
                let alive = engine.log.live(sealed.segment);
                if alive == 0 {
                    return self.free_dead(engine, stream, sealed.segment, undoings);
                }
                if self.stays(engine, sealed.segment) {
                    continue;
                }
                if segment.expired_whole(now) {
                    return self.clean(engine, stream, sealed.segment, Fate::Evict);
                }
                oldest[stream as usize].get_or_insert(sealed);
                live[stream as usize] += u64::from(alive);
                resident.note(engine, stream, sealed, alive);
                if let Some(benefit) = self.benefit(engine, sealed.segment, alive, now, places)
                    && best.is_none_or(|(most, ..)| benefit > most)
                {
                    best = Some((benefit, stream, sealed.segment));
                }
            }
        }
        if let Some((_, stream, number)) = best
            && self.clean(engine, stream, number, Fate::Keep) == Step::Freed
        {
            return Step::Freed;
        }
        if unsettled && let Some(durable) = &engine.durable {
            durable.want_commit();
        }
        if engine.durable.is_some() && (!places || must_free_frames(engine)) {
            if self.free_frame(engine, &resident) || self.drop_just_read(engine) {
                return Step::Freed;
            }
            if unsettled || engine.log.dropped_frames() > 0 {
                return Step::Later;
            }
        }
        if engine.options.when_full == WhenFull::Refuse {
            return if unsettled { Step::Later } else { Step::Nothing };
        }
        let otherwise = if unsettled { Step::Later } else { Step::Nothing };
        self.evict_oldest(engine, oldest, live).unwrap_or(otherwise)
    }

    /// Evicts from the segment that S3-FIFO looks at next: of each stream the oldest is given, if there
    /// is one, and its live bytes.
    fn evict_oldest(
        &mut self,
        engine: &Engine,
        oldest: [Option<Sealed>; 2],
        [new, old]: [u64; 2],
    ) -> Option<Step> {
        let [hot, survivors] = oldest;
        let hot = hot.map(|sealed| (Stream::Hot, sealed));
        let survivors = survivors.map(|sealed| (Stream::Survivors, sealed));
        let probation = new * PROBATION_SHARE > new + old;
        let (stream, sealed) = if probation { hot.or(survivors) } else { survivors.or(hot) }?;
        Some(self.clean(engine, stream, sealed.segment, Fate::Evict))
    }

    /// Evicts from the segment that S3-FIFO looks at next, wherever its records are: there are more
    /// items than the index may lead to.
    fn evict_coldest(&mut self, engine: &Engine) {
        let (settled, undoings) = (engine.log.settled(), engine.undoings());
        let mut oldest: [Option<Sealed>; 2] = [None; 2];
        let mut live = [0u64; 2];
        for stream in [Stream::Hot, Stream::Survivors] {
            for sealed in engine.log.sealed(stream) {
                let lasts = sealed.sealed <= settled && engine.log.is_settled(sealed.segment);
                if lasts && engine.log.live(sealed.segment) == 0 {
                    self.free_dead(engine, stream, sealed.segment, undoings);
                } else if lasts && !self.stays(engine, sealed.segment) {
                    oldest[stream as usize].get_or_insert(sealed);
                }
                live[stream as usize] += u64::from(engine.log.live(sealed.segment));
            }
        }
        if self.evict_oldest(engine, oldest, live).is_none()
            && let Some(durable) = &engine.durable
        {
            durable.want_commit();
        }
    }

    /// Whether the segment holds what cannot be read and may not be lost.
    fn stays(&self, engine: &Engine, number: SegmentNumber) -> bool {
        let generation = engine.log.segment(number).generation();
        self.kept.get(&number).is_some_and(|&kept| kept == generation)
    }

    /// What cleaning a segment gains for its cost, `(1-u)·age/(1+u)` with the live share u; `None`
    /// if too much of it is alive.
    fn benefit(
        &self,
        engine: &Engine,
        number: SegmentNumber,
        alive: u32,
        now: UnixSeconds,
        places: bool,
    ) -> Option<f64> {
        let segment = engine.log.segment(number);
        if segment.is_jumbo() {
            return None;
        }
        // Measured against what was written, not against the segment's size: every cleaning must
        // make dead bytes disappear, or it would go round for ever.
        let share = f64::from(alive) / f64::from(segment.filled().max(1));
        let below = match engine.options.when_full {
            // Its frame could simply go.
            _ if engine.durable.is_some() && !places => CLEAN_INSTEAD_OF_DROPPING,
            WhenFull::Evict => CLEAN_BELOW,
            WhenFull::Refuse => CLEAN_BELOW_WHEN_REFUSING,
        };
        let age = f64::from(now.saturating_sub(segment.born())) + 1.0;
        (share <= below).then(|| (1.0 - share) * age / (1.0 + share))
    }

    /// A segment without a live record needs no look at the index.
    fn free_dead(
        &mut self,
        engine: &Engine,
        stream: Stream,
        number: SegmentNumber,
        undoings: u64,
    ) -> Step {
        let freed = !engine.log.begin_cleaning(stream, number)
            || engine.quarantine(stream, number, Vec::new(), undoings);
        if freed { Step::Freed } else { Step::Later }
    }

    /// Takes every record of a sealed segment out of the index or somewhere else, and the segment
    /// into quarantine.
    fn clean(
        &mut self,
        engine: &Engine,
        stream: Stream,
        number: SegmentNumber,
        fate: Fate,
    ) -> Step {
        if fate == Fate::Evict && self.promote_jumbo(engine, stream, number) {
            return Step::Freed;
        }
        if !engine.log.begin_cleaning(stream, number) {
            return Step::Freed;
        }
        let (mut ends, undoings) = (Vec::new(), engine.undoings());
        match self.walk(engine, Task { stream, fate, whole: true }, number, &mut ends) {
            Ok(true) => match engine.quarantine(stream, number, ends, undoings) {
                true => Step::Freed,
                // A commit has failed meanwhile.
                false => Step::Later,
            },
            Ok(false) => {
                engine.keep_ends(number, ends);
                engine.log.abandon_cleaning(stream, number);
                Step::Nothing
            }
            Err(_) => {
                engine.keep_ends(number, ends);
                engine.log.postpone_cleaning(stream, number);
                // What stays is not looked at again: the turn goes on with the others.
                if self.stays(engine, number) { Step::Freed } else { Step::Unreadable }
            }
        }
    }

    /// A jumbo that S3-FIFO would keep stays where it is and changes the queue.
    pub(super) fn promote_jumbo(
        &mut self,
        engine: &Engine,
        stream: Stream,
        number: SegmentNumber,
    ) -> bool {
        if !engine.log.segment(number).is_jumbo() {
            return false;
        }
        // Before the participant is awake: it may take a read.
        let Ok(loaded) = engine.log.load_if_absent(number) else { return false };
        self.participant.tick();
        let image = loaded.as_ref().map(|loaded| &loaded.image[..]);
        // SAFETY: the segment is sealed and settled, and only the cleaner frees segments.
        let head = unsafe { engine.log.records(number, image) }.next();
        let kept = head.is_some_and(|(address, record)| {
            let key = Key::new(record.key(), engine.options.hash_seed);
            let guard = engine.index.lock(&key);
            let Some((place, slot, ())) = guard.find(&key, at(address)) else { return false };
            let now = engine.now.load(Ordering::Relaxed);
            let keep = keeps(slot, stream) && !expired(record, now);
            if keep {
                guard.replace(place, slot.with_frequency(frequency_after(slot, stream)), 0);
            }
            keep
        });
        self.participant.sleep();
        if kept {
            engine.log.promote(stream, number);
        }
        kept
    }

    /// Once a second: takes expired items out of segments that have some, in turn.
    fn sweep(&mut self, engine: &Engine) {
        let now = engine.now.load(Ordering::Relaxed);
        if now == self.swept {
            return;
        }
        self.swept = now;
        if engine.durable.is_some() {
            // What has expired still hides older versions: it goes when its segment is cleaned.
            return self.clean_expired(engine, now);
        }
        let settled = engine.log.settled();
        let mut due: Vec<(SegmentNumber, Stream)> = Vec::new();
        for stream in [Stream::Hot, Stream::Survivors] {
            for sealed in engine.log.sealed(stream) {
                let earliest = engine.log.segment(sealed.segment).min_expiry();
                if sealed.sealed <= settled && earliest != 0 && earliest <= now {
                    due.push((sealed.segment, stream));
                }
            }
        }
        due.sort_unstable_by_key(|&(number, _)| (number <= self.sweep_at, number));
        due.truncate((SWEEP_BYTES / engine.log.segment_size()).max(1));
        for (number, stream) in due {
            self.sweep_at = number;
            if engine.log.segment(number).expired_whole(now) {
                self.clean(engine, stream, number, Fate::Evict);
            } else {
                let task = Task { stream, fate: Fate::Sweep, whole: true };
                // Without a store nothing is read.
                let _ = self.walk(engine, task, number, &mut Vec::new());
            }
        }
    }

    /// Cleans segments that have expired whole.
    fn clean_expired(&mut self, engine: &Engine, now: UnixSeconds) {
        let settled = engine.log.settled();
        for stream in [Stream::Hot, Stream::Survivors] {
            for sealed in engine.log.sealed(stream) {
                let segment = engine.log.segment(sealed.segment);
                if sealed.sealed <= settled
                    && engine.log.is_settled(sealed.segment)
                    && segment.expired_whole(now)
                    && !self.stays(engine, sealed.segment)
                {
                    self.clean(engine, stream, sealed.segment, Fate::Evict);
                }
            }
        }
    }
}

/// Whether there are too few frames for the writers, counting those on their way.
fn must_free_frames(engine: &Engine) -> bool {
    let coming = engine.log.quarantined() + engine.log.dropped_frames();
    let excess = engine.budget.excess().div_ceil(engine.log.segment_size() as u64) as usize;
    engine.log.available_frames() + coming < READY_FRAMES + excess
}

/// Whether there are too few places in the store for the writers, counting those on their way.
fn must_free_places(engine: &Engine) -> bool {
    engine.log.available_numbers().saturating_add(engine.log.quarantined()) < wanted_places(engine)
}

/// Places in the store that writers should find ready. A place that was emptied is free two commits
/// later, so there are more of them than frames, unless that would push the cleaner to clean what is
/// nearly full of items that must be kept.
fn wanted_places(engine: &Engine) -> usize {
    let share = match (engine.options.when_full, engine.log.store()) {
        (WhenFull::Evict, Some(store)) => store.segment_count() / PLACES_SHARE,
        _ => 0,
    };
    share.clamp(READY_FRAMES, MAX_READY_PLACES).max(engine.log.wanted_numbers())
}

/// Whether moving more would take too much memory beyond the budget before what was freed so far is
/// given back: then the quiescent period comes first.
fn overdrawn(engine: &Engine) -> bool {
    let allowed = (CLEANING_OVERDRAFT * engine.log.segment_size()) as u64;
    engine.log.quarantined() > 0 && engine.budget.used() > engine.budget.limit() + allowed
}
