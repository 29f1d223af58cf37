//! Operations and checks of worlds with several devices: keys move between devices, and devices are
//! added, drained and lost for good.

use super::history::Lost;
use super::machine::{Machine, Part};
use super::{Check, DurableWorld, PATIENCE};
use larder_disk::{Failure as DeviceFailure, Fault, Operation, SimDevice};
use larder_engine::{CommitPoint, Engine, Health, LaneState, OpenError, StoreError};
use std::sync::Arc;

/// The largest number of devices in use at a time.
pub(super) const MOST_DEVICES: usize = 4;
/// The largest number of calls of [`DurableWorld::move_step`] until all keys must be in their final
/// lanes.
const STEPS: usize = 20_000;

impl DurableWorld {
    /// Returns a random number below `count`. Draws no random number if `count` is 1.
    pub(super) fn pick(&mut self, count: usize) -> usize {
        if count > 1 { self.random.below(count as u64) as usize } else { 0 }
    }

    /// Returns the index of a random lane.
    pub(super) fn some_lane(&mut self) -> usize {
        let count = if self.several { self.engine.lanes().len() } else { 1 };
        self.pick(count)
    }

    /// Returns a random device of a lane.
    pub(super) fn device_of(&mut self, lane: usize) -> Result<Arc<SimDevice>, String> {
        let part = match &self.machine.parts[..] {
            [only] => Some(only),
            _ => self.engine.lanes().get(lane).and_then(|lane| self.machine.part(&lane.name)),
        };
        let part = part.ok_or_else(|| format!("lane {lane} has no device"))?;
        let devices: Vec<_> = part.devices().cloned().collect();
        Ok(Arc::clone(&devices[self.pick(devices.len())]))
    }

    /// Returns the indices of the lanes with failing devices.
    pub(super) fn failing_lanes(&self) -> Vec<usize> {
        if self.engine.health() == Health::Good {
            return Vec::new();
        }
        let lanes = self.engine.lanes();
        (0..lanes.len()).filter(|&lane| lanes[lane].health != Health::Good).collect()
    }

    /// Returns the open commit of the key's lane. Once this commit is durable, a change that was
    /// just made to the key is durable too.
    pub(super) fn open_commit(&self, key: &[u8]) -> Result<CommitPoint, String> {
        let lane = self.engine.lane_of(key).ok_or("a call was answered whose key is on its way")?;
        Ok(CommitPoint { lane: lane as u32, position: self.engine.open_commit(lane) })
    }

    /// Runs a random operation of worlds with several devices.
    pub(super) fn rearrange(&mut self) -> Check {
        match self.random.below(200) {
            0..=119 => self.move_some(),
            120..=169 => self.commit_a_lane(),
            170..=176 => self.drain(true),
            177..=179 => self.drain(false),
            180 => self.settle_down(),
            181..=184 => self.check_scan(),
            _ if self.anomaly.is_armed() => Ok(()),
            185 => self.crash(),
            186 => self.kill(),
            187..=188 => self.fail_in_motion(),
            189..=190 => self.stop_in_motion(),
            191 => self.flush(),
            _ => Ok(()),
        }
    }

    /// Makes one step of moving partitions between lanes. If a commit waits inside a device and the
    /// step may write to that lane's device, lets the commit finish first. Returns true if there is
    /// more to move.
    pub(super) fn move_step(&mut self) -> Result<bool, String> {
        if self.held_commit.as_ref().is_some_and(|held| self.engine.move_writes_to(held.lane)) {
            self.finish_held_commit()?;
        }
        Ok(self.engine.move_partitions())
    }

    /// Makes some steps of moving partitions between lanes. Between the steps, makes the commits
    /// and reads that the moves wait for.
    pub(super) fn move_some(&mut self) -> Check {
        for _ in 0..1 << self.random.below(7) {
            if self.machine.is_stopped() || !self.move_step()? {
                break;
            }
            match self.random.below(6) {
                0 => self.commit_a_lane()?,
                1 | 2 => {
                    self.tick_all();
                    self.engine.serve_reads();
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Commits one lane, independently of the others.
    pub(super) fn commit_a_lane(&mut self) -> Check {
        let lane = self.some_lane();
        self.commit_lane(lane)
    }

    fn commit_lane(&mut self, lane: usize) -> Check {
        if self.held_commit.as_ref().is_some_and(|held| held.lane == lane) {
            self.finish_held_commit()?;
        }
        self.engine.commit_lane(lane);
        if !self.restarting {
            self.settle();
        }
        self.tick_all();
        Ok(())
    }

    /// Returns the lanes between which some known key is moving, source first, or `None`.
    fn moving(&self) -> Option<(usize, usize)> {
        self.model.keys().iter().find_map(|key| match self.engine.lost_with(key)[..] {
            [from, to] => Some((from, to)),
            _ => None,
        })
    }

    /// Makes the next `operation` fail on a device of the lane.
    pub(super) fn fail_next(&mut self, lane: usize, operation: Operation) -> Check {
        let device = self.device_of(lane)?;
        let next = device.counts().of(operation) + 1;
        device.plan(Fault::once(operation, next, DeviceFailure::Io));
        Ok(())
    }

    /// Starts to move keys while many writes are uncommitted. Then makes a commit fail, either of
    /// the source lane or of the target lane.
    fn fail_in_motion(&mut self) -> Check {
        for _ in 0..40 {
            self.set()?;
        }
        self.move_step()?;
        let Some((from, to)) = self.moving() else { return Ok(()) };
        let leaving = self.random.one_in(2);
        if leaving {
            self.fail_next(from, Operation::Sync)?;
            self.begin_held_commit_in(from)?;
        }
        let fails = self.random.below(12);
        for turn in 0..30 {
            self.move_step()?;
            if turn == fails && !leaving {
                self.fail_next(to, Operation::Sync)?;
            }
            for lane in (0..self.engine.lanes().len()).filter(|&lane| lane != from || !leaving) {
                self.commit_lane(lane)?;
            }
            self.engine.serve_reads();
        }
        self.finish_held_commit()
    }

    /// Ends the process or cuts the power shortly before or after partitions are handed over to
    /// another lane. Before the process ends or the power fails, a device of one of the two lanes
    /// may fail. At the restart, one of the lanes may be lost.
    fn stop_in_motion(&mut self) -> Check {
        for _ in 0..self.random.below(200) {
            if self.machine.is_stopped() || !self.move_step()? {
                break;
            }
            self.engine.serve_reads();
            self.commit()?;
            if self.engine.move_writes_to(0) && self.random.one_in(2) {
                break;
            }
        }
        let Some((from, to)) = self.moving() else { return Ok(()) };
        if self.random.one_in(2) {
            let lane = if self.random.one_in(2) { from } else { to };
            let sync = self.random.one_in(2);
            self.fail_next(lane, if sync { Operation::Sync } else { Operation::Write })?;
        }
        for _ in 0..self.random.below(4) {
            self.move_step()?;
        }
        for _ in 0..self.random.below(40) {
            self.set()?;
        }
        self.loses = self.random.one_in(2);
        if self.random.one_in(2) { self.kill() } else { self.crash() }
    }

    /// Returns the lanes without which the store does not start.
    pub(super) fn needed(&self) -> Vec<LaneState> {
        self.engine.lanes().into_iter().filter(|lane| !lane.drained).collect()
    }

    /// Starts to drain a random device, or cancels its drain.
    fn drain(&mut self, drain: bool) -> Check {
        self.finish_held_commit()?;
        let lanes = self.needed();
        let LaneState { name, .. } = &lanes[self.pick(lanes.len())];
        // The engine may refuse: it does not drain the last device, and a device may be failing.
        let _ = if drain { self.engine.drain(name) } else { self.engine.keep(name) };
        Ok(())
    }

    /// Checks that a key that is moving arrives in a lane within [`PATIENCE`] rounds of work. The
    /// check ends early if the machine stops.
    pub(super) fn arrives(&mut self, key: &[u8]) -> Check {
        for _ in 0..PATIENCE {
            if self.engine.lane_of(key).is_some() || self.machine.is_stopped() {
                return Ok(());
            }
            self.engine.serve_reads();
            self.clean();
            self.commit()?;
            self.move_step()?;
        }
        Err(format!("partitions are closed for ever: {:?}", self.engine.lanes()))
    }

    /// Moves keys until none has to move, then checks that no item exists twice.
    fn settle_down(&mut self) -> Check {
        for _ in 0..STEPS {
            self.engine.serve_reads();
            self.clean();
            self.commit()?;
            if self.machine.is_stopped() {
                return Ok(());
            }
            if !self.move_step()? {
                self.commit()?;
                let good = self.engine.health() == Health::Good && !self.machine.is_stopped();
                return if good { self.check_items() } else { Ok(()) };
            }
        }
        // In a store that does not evict, a full lane accepts no partitions, so the moves may never
        // end.
        if self.evicts() && self.engine.health() == Health::Good {
            return Err(format!("keys move for ever: {:?}", self.engine.lanes()));
        }
        Ok(())
    }

    /// Checks that no lane has more items than the model expects in it. The caller ensures that no
    /// key is moving and that everything is committed.
    fn check_items(&self) -> Check {
        let lanes = self.engine.lanes();
        let mut known = vec![0; lanes.len()];
        for key in self.model.items() {
            if let Some(lane) = self.engine.lane_of(key) {
                known[lane] += 1;
            }
        }
        match lanes.iter().zip(known).find(|(lane, known)| lane.items > *known) {
            Some((lane, known)) => Err(format!("not more than {known} items belong in {lane:?}")),
            None => Ok(()),
        }
    }

    /// Returns all keys with their lanes; nothing if there is only one lane.
    pub(super) fn lanes_of_keys(&self) -> Vec<(Vec<u8>, usize)> {
        if !self.several {
            return Vec::new();
        }
        let keys = self.model.keys().into_iter();
        keys.filter_map(|key| self.engine.lane_of(&key).map(|lane| (key, lane))).collect()
    }

    /// Checks that every key of `lanes` is still in the lane given there. The caller holds an item
    /// as a reader, so no key may have moved in the meantime.
    pub(super) fn check_not_moved(&self, lanes: &[(Vec<u8>, usize)]) -> Check {
        let moved = |(key, lane): &&(Vec<u8>, usize)| {
            self.engine.lane_of(key).is_some_and(|now| now != *lane)
        };
        match lanes.iter().find(moved) {
            Some((key, _)) => {
                let key = String::from_utf8_lossy(key);
                Err(format!("{key} moved while a reader held an item"))
            }
            None => Ok(()),
        }
    }

    /// Adds and removes devices between two lives of the store. Returns true if the store keeps the
    /// lanes that it needs and gets no new one.
    pub(super) fn change_hardware(&mut self, machine: &mut Machine) -> Result<bool, String> {
        let lanes = self.needed();
        let mut same = true;
        if self.random.one_in(2) && !self.anomaly.is_armed() {
            let idle = |part: &&Part| !lanes.iter().any(|lane| lane.name == part.name);
            let idle: Vec<_> = machine.parts.iter().filter(idle).map(|p| p.name.clone()).collect();
            idle.iter().for_each(|name| drop(machine.remove(name)));
        }
        let loses = std::mem::take(&mut self.loses) || self.random.one_in(30);
        if lanes.len() > 1 && loses && !self.anomaly.is_armed() {
            // A lane is not lost here if it was draining and had no more partitions. Perhaps the
            // end of the drain became durable just before the stop, and the store starts without
            // the lane.
            let empty = |lane: &LaneState| lane.draining && lane.partitions == 0;
            let holding: Vec<_> = lanes.into_iter().filter(|lane| !empty(lane)).collect();
            self.lose_a_device(machine, &holding)?;
            same = false;
        }
        if let Some(gone) = self.gone.clone().filter(|_| self.random.one_in(4)) {
            self.check_turned_up(machine, &gone)?;
        }
        if machine.parts.len() < MOST_DEVICES && self.random.one_in(4) {
            machine.add(&mut self.random);
            same = false;
        }
        Ok(same)
    }

    /// Loses a device for good. The store must not start without the device until the option
    /// `forget` names the device's lane.
    fn lose_a_device(&mut self, machine: &mut Machine, lanes: &[LaneState]) -> Check {
        let all = self.engine.lanes();
        let moving = self.moving().filter(|_| self.random.one_in(2));
        let LaneState { number, name, .. } = match moving {
            Some((from, to)) => &all[if self.random.one_in(2) { from } else { to }],
            None => &lanes[self.pick(lanes.len())],
        };
        let position = all.iter().position(|lane| lane.name == *name);
        for key in self.model.keys() {
            let lost = match &self.engine.lost_with(&key)[..] {
                [only] if Some(*only) == position => Lost::Yes,
                several if several.iter().any(|&one| Some(one) == position) => Lost::Perhaps,
                _ => continue,
            };
            self.lost.insert(key, lost);
        }
        self.gone = machine.remove(name);
        match self.try_open(&machine.image()) {
            Err(OpenError::Store(StoreError::Missing { lanes, .. })) if lanes == [*number] => {}
            other => return Err(format!("a start without {name}: {other:?}")),
        }
        if let Some(store) = &mut self.options.store {
            store.forget = vec![*number];
        }
        Ok(())
    }

    /// Checks that the store does not start if it is given `gone`, a device whose lane it had to
    /// forget.
    fn check_turned_up(&mut self, machine: &Machine, gone: &Part) -> Check {
        let mut machine = machine.image();
        machine.parts.push(gone.image());
        match self.try_open(&machine) {
            Err(OpenError::Store(_)) => Ok(()),
            other => Err(format!("a start with {}, which was forgotten: {other:?}", gone.name)),
        }
    }

    pub(super) fn try_open(&self, machine: &Machine) -> Result<(), OpenError> {
        let mut options = self.options.clone();
        options.memory = options.memory.max((8 * machine.parts.len() as u64) << 20);
        if let Some(store) = &mut options.store {
            store.devices = machine.given();
        }
        Engine::open_without_threads(options).map(drop)
    }
}
