//! The mover: moves keys from one lane to another when a device was added or is being drained.
//!
//! Partitions move a few at a time: at most as many as share a stripe. While they move they are
//! *closed*: calls that need one of their keys wait until the partitions are open again. Below, the
//! source is the lane that has the keys and the target the lane that gets them. The steps are:
//!
//! 0. The mover waits until everything that the target has evicted so far is durably gone. The
//!    target may have owned these keys before, and a crash could bring old versions back.
//! 1. The table of lanes records the motion. From now on, a start ignores the target's items of
//!    these partitions.
//! 2. The partitions are closed, and every session passes a quiescent point, so that no thread uses
//!    them any more. The mover waits until earlier writes are durable or undone.
//! 3. Leftovers of an earlier attempt are deleted from the target, and the items are copied there.
//! 4. The copies become durable. Then the table names the target as the owner, and the partitions
//!    are opened.
//! 5. The source's items of these partitions are deleted. When that is durable, the table records
//!    the end of the motion.
//!
//! If a start finds a motion in the table, the mover's first job deletes the items of the motion's
//! partitions from the lane that does not own them. From each lane whose log the start reads (and
//! not only the index image), the start itself deletes items of partitions that this lane does not
//! own. A lane never shows keys of partitions that it does not own, so each key has one version at
//! any time.

pub(crate) mod state;
mod walk;

pub(crate) use walk::delete_strays;

use crate::durability::Durable;
use crate::engine::lanes::next_motion;
use crate::engine::partitions::Partitions;
use crate::engine::{Engine, position_of};
use crate::lane::Lane;
use crate::lane::session::LaneSession;
use crate::lock::lock;
use crate::{Health, Key};
use larder_log::SegmentNumber;
use larder_log::format::{LaneNumber, Lanes, Motion, partition};
use state::{Job, Mover, Phase, Walk};
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;
use walk::{Stepped, run_length, walked};

/// Interval at which the mover checks the condition that it waits for, if nothing wakes it.
const POLL: Duration = Duration::from_micros(100);
/// Pause between two steps while the partitions are open, so that no call waits for the steps.
const REST: Duration = Duration::from_micros(300);
/// Time before the mover retries a step that failed because of a device or a lack of space.
const RETRY: Duration = Duration::from_secs(1);
/// The largest number of times that the mover checks whether the target's evicted items are durably
/// gone. After that, it gives up the motion.
const MAX_CHECKS: u32 = 20_000;
/// The mover requests a commit once per `COMMIT_CHECKS` checks for evicted items.
const COMMIT_CHECKS: u32 = 64;
/// The longest time that the mover waits until the copies in the target are durable, in
/// microseconds. After that, it gives up the motion and opens the partitions in the source again.
const PATIENCE_US: u64 = 5_000_000;
/// When the mover chooses partitions, it skips those that could not be moved: about 2^n times after
/// n failed attempts, but at most 2^`MAX_BACKOFF` times.
const MAX_BACKOFF: u32 = 8;

/// Wakes the mover's thread.
struct WakeThread(Thread);

impl Wake for WakeThread {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Starts the mover's thread, unless no partition can ever move. The thread holds no strong
/// reference to the engine while it waits.
pub(crate) fn spawn(engine: &Arc<Engine>) -> io::Result<()> {
    if engine.partitions.never_move() {
        return Ok(());
    }
    let weak = Arc::downgrade(engine);
    let builder = thread::Builder::new().name("mover".into());
    let handle = builder.spawn(move || run(&weak))?;
    let _ = engine.mover_thread.set(handle.thread().clone());
    // Requests made before `mover_thread` was set could not wake the thread.
    handle.thread().unpark();
    Ok(())
}

fn run(weak: &Weak<Engine>) {
    loop {
        let Some(engine) = weak.upgrade() else { return };
        engine.serve_drains();
        let wait = lock(&engine.mover).step(&engine);
        engine.step_ended();
        drop(engine);
        match wait {
            Some(time) => thread::park_timeout(time),
            None => thread::park(),
        }
    }
}

impl Engine {
    /// Takes one of the mover's steps, in an engine that was opened without threads. Returns true
    /// if there is more to do.
    pub fn move_partitions(&self) -> bool {
        self.serve_drains();
        let more = lock(&self.mover).step(self).is_some();
        self.step_ended();
        more
    }

    /// Returns the positions of the lanes whose loss may lose a key: its owner, and the other lane
    /// while the key moves. For simulations.
    pub fn lost_with(&self, key: &[u8]) -> Vec<usize> {
        let key = Key::new(key, self.lanes[0].options.hash_seed);
        match &lock(&self.mover).job {
            Some(job) if job.partitions.contains(&partition(key.lo)) => vec![job.from, job.to],
            _ => vec![self.partitions.lane_of(&key)],
        }
    }

    /// Returns true if the mover's next step may write to a lane's device directly rather than
    /// through a commit. For simulations of slow devices.
    pub fn move_writes_to(&self, lane: usize) -> bool {
        match &lock(&self.mover).job {
            Some(Job { phase: Phase::Clear(_), to, .. }) => *to == lane,
            Some(job) => matches!(job.phase, Phase::Ready(..) | Phase::HandOver | Phase::End),
            None => true,
        }
    }

    /// Wakes the mover to look for work.
    pub(crate) fn kick_mover(&self) {
        if let Some(thread) = self.mover_thread.get() {
            thread.unpark();
        }
    }

    /// Changes the table of lanes durably: first in the lanes at the positions `needed`, in this
    /// order, then in all other lanes if their devices allow it.
    ///
    /// # Errors
    /// If a needed device fails. In memory only the table's version changes then, but the next
    /// start may find the old table or the new one, so both must be correct.
    pub(crate) fn change_table_in(
        &self,
        needed: &[usize],
        change: impl FnOnce(&mut Lanes),
    ) -> io::Result<()> {
        let _writer = lock(&self.table_writer);
        let mut next = {
            let mut table = lock(&self.table);
            // The version counts up even if the change fails later: a version that could not be
            // written everywhere is never reused.
            table.version += 1;
            *table
        };
        change(&mut next);
        needed.iter().try_for_each(|&position| self.lanes[position].keep_table(&next))?;
        for position in (0..self.lanes.len()).filter(|position| !needed.contains(position)) {
            self.lanes[position].keep_table_sometime(&next);
        }
        *lock(&self.table) = next;
        Ok(())
    }

    /// Like [`Engine::change_table_in`]. The needed lanes are all lanes whose devices work.
    pub(crate) fn change_table(&self, change: impl FnOnce(&mut Lanes)) -> io::Result<()> {
        let working = self.working();
        if working.is_empty() {
            return Err(io::Error::other("no device of the store works"));
        }
        self.change_table_in(&working, change)
    }

    /// Returns the positions of the lanes whose devices work.
    fn working(&self) -> Vec<usize> {
        let works = |&position: &usize| self.lanes[position].health() == Health::Good;
        (0..self.lanes.len()).filter(works).collect()
    }

    /// Returns the lanes' numbers and their capacities in bytes.
    fn capacities(&self) -> Vec<(LaneNumber, u64)> {
        let member = |lane: &&Arc<Lane>| self.is_used(lane);
        self.lanes.iter().filter(member).map(|lane| (lane.number(), lane.capacity())).collect()
    }

    fn position_of(&self, number: LaneNumber) -> usize {
        position_of(&self.lanes, number).unwrap_or(0)
    }
}

impl Mover {
    /// Creates the mover at a start. If the table contains a motion, the mover's first job deletes
    /// the motion's items from the lane that does not own them.
    pub(crate) fn new(table: &Lanes, lanes: &[Arc<Lane>]) -> Self {
        let Some(motion) = table.motion else { return Mover::default() };
        let at = |number| position_of(lanes, number);
        let owner = table.owners[usize::from(motion.first)];
        let (Some(from), Some(to)) = (at(motion.from), at(owner)) else { return Mover::default() };
        let job = Job::new(motion.partitions(), from, to, Phase::Empty(Walk::default()));
        Mover { job: Some(job), ..Mover::default() }
    }

    /// Ends the mover. Calls that wait for closed partitions are refused.
    pub(crate) fn end(&mut self, partitions: &Partitions) {
        self.ended = true;
        if let Some(job) = &mut self.job {
            job.forget_reads(&self.sessions);
        }
        self.sessions.clear();
        if self.job.as_ref().is_some_and(|job| job.closed) {
            partitions.set_stuck();
        }
    }

    /// Takes one step. Returns the time until the next step; `None` to wait for a request.
    pub(crate) fn step(&mut self, engine: &Engine) -> Option<Duration> {
        if self.ended {
            return None;
        }
        if self.job.is_none() {
            self.job = self.choose(engine);
        }
        if self.job.is_none() {
            self.sessions.clear();
            return self.idle(engine);
        }
        if self.sessions.is_empty() {
            let waker = match engine.mover_thread.get() {
                Some(thread) => Waker::from(Arc::new(WakeThread(thread.clone()))),
                None => Waker::noop().clone(),
            };
            let session = |lane: &Arc<Lane>| lane.session(waker.clone());
            self.sessions = engine.lanes.iter().map(session).collect();
        }
        let Mover { job: Some(job), sessions, .. } = self else { return None };
        for (session, lane) in sessions.iter_mut().zip(&engine.lanes) {
            session.tick(lane.now.load(Ordering::Relaxed));
        }
        let stepped = job.step(engine, sessions);
        sessions.iter_mut().for_each(LaneSession::sleep);
        match stepped {
            Stepped::Failed => {
                if job.closed {
                    engine.partitions.set_stuck();
                }
                Some(RETRY)
            }
            Stepped::Waiting => Some(POLL),
            Stepped::On if job.closed => Some(Duration::ZERO),
            Stepped::On => Some(REST),
            Stepped::Done => {
                let first = job.partitions.start;
                match job.given_up {
                    false => drop(self.backoff.remove(&first)),
                    true => {
                        let backoff = self.backoff.entry(first).or_default();
                        backoff.failures += 1;
                        backoff.wait = 1 << backoff.failures.min(MAX_BACKOFF);
                    }
                }
                self.job = None;
                Some(REST)
            }
        }
    }

    /// Chooses the next motion, if some keys should have another owner.
    fn choose(&mut self, engine: &Engine) -> Option<Job> {
        self.backoff.values_mut().for_each(|backoff| backoff.wait = backoff.wait.saturating_sub(1));
        let table = *lock(&engine.table);
        let works = |number| engine.lanes[engine.position_of(number)].health() == Health::Good;
        let due = |first: usize| self.backoff.get(&first).is_none_or(|backoff| backoff.wait == 0);
        let receives = |number| engine.lanes[engine.position_of(number)].receives();
        let run = run_length(engine);
        let next = next_motion(&table, &engine.capacities(), run, works, receives, due);
        let (partitions, from, to) = next?;
        let (from, to) = (engine.position_of(from), engine.position_of(to));
        let phase = Phase::Ready(engine.lanes[to].log.evicting(), 0);
        Some(Job::new(partitions, from, to, phase))
    }

    /// Removes a fully drained lane from the table. Called when nothing can be moved. Returns the
    /// time until the next step; `None` to wait for a request.
    fn idle(&self, engine: &Engine) -> Option<Duration> {
        let table = *lock(&engine.table);
        let emptied = |lane: &Arc<Lane>| {
            let number = lane.number();
            table.is_member(number) && table.is_draining(number) && table.owned(number) == 0
        };
        if let Some(position) = engine.lanes.iter().position(emptied) {
            let number = engine.lanes[position].number();
            // The drained lane records the change first. If only the other lanes recorded it, the
            // table of the drained lane would seem out of date to the next start.
            let mut order = engine.working();
            if order.len() < engine.lanes.iter().filter(|lane| engine.is_used(lane)).count() {
                // At the next start, a lane that has not recorded the change would expect the
                // drained lane to be there.
                return Some(RETRY);
            }
            order.retain(|&other| other != position);
            order.insert(0, position);
            let left = engine.change_table_in(&order, |table| table.remove(number));
            return Some(if left.is_ok() { Duration::ZERO } else { RETRY });
        }
        let run = run_length(engine);
        next_motion(&table, &engine.capacities(), run, |_| true, |_| true, |_| true).map(|_| RETRY)
    }
}

impl Job {
    fn new(partitions: Range<usize>, from: usize, to: usize, phase: Phase) -> Self {
        Job { partitions, from, to, closed: false, phase, undo_count: None, given_up: false }
    }

    /// Takes a step of the current phase. If the phase is then done, enters the next phase.
    fn step(&mut self, engine: &Engine, sessions: &[LaneSession]) -> Stepped {
        match self.step_phase(engine, sessions) {
            Stepped::Done => self.enter_next(engine),
            Stepped::Failed => self.fail(engine, sessions),
            other => other,
        }
    }

    fn step_phase(&mut self, engine: &Engine, sessions: &[LaneSession]) -> Stepped {
        let (from, to) = (&sessions[self.from], &sessions[self.to]);
        let (source, target) = (&engine.lanes[self.from], &engine.lanes[self.to]);
        let partitions = &self.partitions;
        match &mut self.phase {
            Phase::Ready(evicting, checks) => await_evictions(target, to, evicting, checks),
            Phase::Close(epochs) => {
                let mut epochs = engine.lanes.iter().zip(epochs);
                done_if(epochs.all(|(lane, epoch)| lane.epochs.passed(*epoch)))
            }
            Phase::Settle(commit) => done_if(!source.is_sync() || !from.is_pending(*commit)),
            Phase::Clear(walk) => {
                self.undo_count.get_or_insert_with(|| target.undo_count());
                match walk.clear(to, walked(engine, self.to, partitions), partitions) {
                    Stepped::Done => raise_versions(source, target, partitions),
                    other => other,
                }
            }
            Phase::Copy(walk) => {
                walk.copy(from, to, source.stripes(partitions.clone()), partitions)
            }
            Phase::Await(commit, since) => {
                let late = || target.clock_us().saturating_sub(*since) > PATIENCE_US;
                match await_durable(target, to, *commit, self.undo_count) {
                    Stepped::Waiting if late() || target.health() != Health::Good => {
                        Stepped::Failed
                    }
                    other => other,
                }
            }
            Phase::HandOver => self.hand_over(engine),
            Phase::Empty(walk) => {
                self.undo_count.get_or_insert_with(|| source.undo_count());
                walk.empty(from, walked(engine, self.from, partitions), partitions)
            }
            Phase::AwaitEmpty(commit) => await_durable(source, from, *commit, self.undo_count),
            Phase::End => {
                let ended =
                    engine.change_table_in(&[self.from, self.to], |table| table.motion = None);
                if ended.is_ok() { Stepped::Done } else { Stepped::Failed }
            }
        }
    }

    /// Enters the phase after the current one, which has ended.
    fn enter_next(&mut self, engine: &Engine) -> Stepped {
        let (source, target) = (&engine.lanes[self.from], &engine.lanes[self.to]);
        self.phase = match self.phase {
            Phase::Ready(..) => return self.close(engine),
            Phase::Close(_) => Phase::Settle(source.open_commit()),
            Phase::Settle(_) => Phase::Clear(Walk::default()),
            Phase::Clear(_) => Phase::Copy(Walk::default()),
            Phase::Copy(_) => Phase::Await(target.open_commit(), target.clock_us()),
            Phase::Await(..) => Phase::HandOver,
            Phase::HandOver => Phase::Empty(Walk::default()),
            Phase::Empty(_) => Phase::AwaitEmpty(source.open_commit()),
            Phase::AwaitEmpty(_) => Phase::End,
            Phase::End => return Stepped::Done,
        };
        Stepped::On
    }

    /// Decides what follows the failure of the current phase.
    fn fail(&mut self, engine: &Engine, sessions: &[LaneSession]) -> Stepped {
        match self.phase {
            Phase::Ready(..) => {
                self.given_up = true;
                Stepped::Done
            }
            Phase::Clear(_) | Phase::Copy(_) | Phase::Await(..) => self.give_up(engine, sessions),
            Phase::AwaitEmpty(_) => {
                self.undo_count = None;
                self.phase = Phase::Empty(Walk::default());
                Stepped::On
            }
            _ => Stepped::Failed,
        }
    }

    /// Records the motion in the table and closes the partitions.
    fn close(&mut self, engine: &Engine) -> Stepped {
        let (first, count) = (self.partitions.start as u16, self.partitions.len() as u16);
        let from = engine.lanes[self.to].number();
        let motion = Some(Motion { first, count, from });
        let begun = engine.change_table_in(&[self.from, self.to], |table| table.motion = motion);
        if begun.is_err() {
            self.given_up = true;
            // A device may have recorded the motion although the call failed. A start that finds
            // this motion deletes the partitions' items from the target, which does not own them.
            return Stepped::Done;
        }
        self.closed = true;
        engine.partitions.close(self.partitions.clone());
        self.phase = Phase::Close(engine.lanes.iter().map(|lane| lane.epochs.advance()).collect());
        Stepped::On
    }

    /// Makes the target the owner and opens the partitions there.
    fn hand_over(&mut self, engine: &Engine) -> Stepped {
        let source = engine.lanes[self.from].number();
        let target = engine.lanes[self.to].number();
        // The source must record the change before the target takes writes. Otherwise, if the
        // target was lost, the source would show older versions again. The other lanes, the target
        // included, record the change as soon as their devices allow.
        let changed = engine.change_table_in(&[self.from], |table| {
            table.owners[self.partitions.clone()].fill(target);
            if let Some(motion) = &mut table.motion {
                motion.from = source;
            }
        });
        if changed.is_err() {
            // It is unknown whether a start would find the old or the new table of lanes. No
            // session may write to the partitions until that is known.
            return Stepped::Failed;
        }
        self.open(engine, self.to);
        let _ = engine.share_memory();
        self.undo_count = None;
        Stepped::Done
    }

    /// Releases the current walk's reads.
    fn forget_reads(&mut self, sessions: &[LaneSession]) {
        let (lane, walk) = match &mut self.phase {
            Phase::Clear(walk) => (self.to, walk),
            Phase::Copy(walk) | Phase::Empty(walk) => (self.from, walk),
            _ => return,
        };
        if let Some(session) = sessions.get(lane) {
            walk.forget_reads(session);
        }
    }

    /// Gives up the motion: the partitions stay in the source, and the copies in the target are
    /// deleted.
    fn give_up(&mut self, engine: &Engine, sessions: &[LaneSession]) -> Stepped {
        self.forget_reads(sessions);
        self.open(engine, self.from);
        std::mem::swap(&mut self.from, &mut self.to);
        self.undo_count = None;
        self.given_up = true;
        self.phase = Phase::Empty(Walk::default());
        Stepped::Failed
    }

    fn open(&mut self, engine: &Engine, position: usize) {
        self.closed = false;
        engine.partitions.open(self.partitions.clone(), position);
    }
}

/// Checks whether everything that the target evicted from the segments `evicting` is durably gone.
/// Returns `Waiting` until it is, or `Failed` after [`MAX_CHECKS`] checks.
fn await_evictions(
    target: &Lane,
    session: &LaneSession,
    evicting: &mut Vec<(SegmentNumber, u32)>,
    checks: &mut u32,
) -> Stepped {
    evicting.retain(|&(number, generation)| target.log.is_evicting_from(number, generation));
    *checks += 1;
    // The cleaner may have removed items from a segment without emptying it. Such a segment has
    // kept ends. The motion must wait until it is cleaned, too.
    if evicting.is_empty() && !target.log.keeps_ends() {
        return Stepped::Done;
    }
    if *checks >= MAX_CHECKS {
        return Stepped::Failed;
    }
    if *checks % COMMIT_CHECKS == 1 {
        if evicting.is_empty() {
            target.receives();
        }
        session.wake_on_next_commit();
    }
    Stepped::Waiting
}

/// Raises the target's versions above those that the source has given to keys of the partitions.
fn raise_versions(source: &Lane, target: &Lane, partitions: &Range<usize>) -> Stepped {
    let stripes = source.stripes(partitions.clone());
    let newest = source.index.newest_seq(stripes.clone());
    match target.raise_versions(stripes, newest) {
        Ok(()) => Stepped::Done,
        Err(_) => Stepped::Failed,
    }
}

/// Returns `Waiting` until a commit of the lane is durable. Returns `Failed` if a commit was undone
/// since the lane's undo count was `undo_count`, and `Done` otherwise, or at once if the lane
/// promises no durability.
fn await_durable(
    lane: &Lane,
    session: &LaneSession,
    commit: u64,
    undo_count: Option<u64>,
) -> Stepped {
    if !lane.log.durability().is_some_and(Durable::promises) {
        return Stepped::Done;
    }
    if session.is_undurable(commit) {
        return Stepped::Waiting;
    }
    if undo_count == Some(lane.undo_count()) { Stepped::Done } else { Stepped::Failed }
}

fn done_if(done: bool) -> Stepped {
    if done { Stepped::Done } else { Stepped::Waiting }
}
