//! Operations and checks of worlds whose lanes have lower devices. These worlds write so much that
//! the cleaner moves cooled segments to the lower devices. During these moves, devices and the
//! power fail. Lower devices are added, grow, are missing or are mixed up. The power also fails
//! while a store is opened.

use super::machine::{Machine, Part, random_size};
use super::verbs::ROOM;
use super::{Check, DurableWorld};
use larder_disk::{Device, Operation, SimDevice};
use larder_engine::{LaneState, OpenError, StoreError};
use std::ops::AddAssign;
use std::sync::Arc;

/// Counts of what happened in a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorldCounts {
    /// Segments moved to lower devices.
    pub moved: u64,
    /// Power losses while a lower device had unsynced writes.
    pub interrupted: u64,
    /// Devices that grew while in use.
    pub grown: u64,
    /// Early writes.
    pub early: u64,
    /// Keys with a change that survived the end of the process only because of an early write.
    pub kept: u64,
    /// Sets that did not read the record that they superseded.
    pub unread: u64,
    /// Starts at which the time of the store went back.
    pub set_back: u64,
}

impl AddAssign for WorldCounts {
    fn add_assign(&mut self, other: WorldCounts) {
        self.moved += other.moved;
        self.interrupted += other.interrupted;
        self.grown += other.grown;
        self.early += other.early;
        self.kept += other.kept;
        self.unread += other.unread;
        self.set_back += other.set_back;
    }
}

impl DurableWorld {
    /// Called before another engine replaces this one. Adds the engine's counts to those of the
    /// world: the segments that moved to lower devices, and the sets that did not read the record
    /// that they superseded.
    pub(super) fn note_moved(&mut self) {
        let totals = self.engine.stats().totals;
        self.counts.moved += totals.cooled_segments;
        self.counts.unread += totals.unread_sets;
    }

    /// Counts a power loss, if it interrupts a move to a lower device.
    pub(super) fn note_power_loss(&mut self) {
        let mut lower = self.machine.parts.iter().filter_map(|part| part.lower.as_ref());
        self.counts.interrupted += u64::from(lower.any(|device| device.unsynced_sectors() > 0));
    }

    /// Runs an operation that moves segments to lower devices.
    pub(super) fn use_tiers(&mut self) -> Check {
        match self.random.below(8) {
            0 => self.fail_in_a_move(),
            1 => self.stop_in_a_move(),
            _ => self.pile_up(),
        }
    }

    /// Writes large values, often more than a fast device holds.
    pub(super) fn pile_up(&mut self) -> Check {
        let keys = self.machine.smallest() / ROOM;
        for _ in 0..1 << self.random.below(7) {
            let key = format!("c{}", self.random.below(keys)).into_bytes();
            match self.random.below(8) {
                0 => self.delete_key(&key)?,
                1 => drop(self.read(&key)?),
                _ => {
                    let length = 1000 + self.random.below(30_000) as usize;
                    let value = vec![self.random.bits() as u8; length];
                    self.store(&key, value)?;
                }
            }
            self.clean();
            if self.random.one_in(4) {
                self.commit_a_lane()?;
            }
        }
        Ok(())
    }

    /// Makes the next write or the next sync of a lane's devices fail while segments move down to
    /// the lower device.
    fn fail_in_a_move(&mut self) -> Check {
        self.pile_up()?;
        let lane = self.some_lane();
        let sync = self.random.one_in(2);
        self.fail_next(lane, if sync { Operation::Sync } else { Operation::Write })?;
        self.clean();
        self.commit()
    }

    /// Plans a power loss while segments move down, or just after that.
    fn stop_in_a_move(&mut self) -> Check {
        self.pile_up()?;
        let within = 1 + self.random.below(6);
        let device = self.some_device();
        device.stop_at(device.counts().changes() + within);
        for _ in 0..4 {
            self.clean();
            self.commit()?;
        }
        Ok(())
    }

    /// Adds and grows lower devices between two lives of the store. Returns false if a start was
    /// interrupted in between, because such a start may have changed the store.
    pub(super) fn change_tiers(&mut self, machine: &mut Machine) -> Result<bool, String> {
        let mut joins = None;
        for (at, part) in machine.parts.iter_mut().enumerate() {
            match &mut part.lower {
                Some(lower) if self.random.one_in(10) => {
                    let size = lower.size() + self.random.below(4 << 20);
                    *lower = Arc::new(lower.grown(size));
                }
                lower @ None if self.random.one_in(3) => {
                    let size = random_size(&mut self.random);
                    *lower = Some(Arc::new(SimDevice::new(size, self.random.bits())));
                    joins = Some(at);
                }
                _ => {}
            }
        }
        if self.anomaly.is_armed() {
            return Ok(true);
        }
        if self.random.one_in(6) {
            self.check_wrong_lower(machine)?;
        }
        let mut whole = true;
        while self.random.one_in(if joins.is_some() { 2 } else { 4 }) {
            whole = false;
            self.interrupt_start(machine, joins)?;
        }
        Ok(whole)
    }

    /// Checks that a lane with a lower device does not open without that device or with a wrong
    /// one.
    fn check_wrong_lower(&mut self, machine: &Machine) -> Check {
        let mut wrong = machine.image();
        // A lane that is empty and was being drained is left out: the store may have released the
        // lane just before the power failed.
        let mut needed = self.needed();
        needed.retain(|lane| !lane.draining || lane.partitions > 0);
        let had = |part: &Part| {
            let had = |lane: &LaneState| lane.name == part.name && lane.lower.is_some();
            needed.iter().any(had)
        };
        let had: Vec<usize> = (0..wrong.parts.len()).filter(|&at| had(&wrong.parts[at])).collect();
        if had.is_empty() {
            return Ok(());
        }
        let at = had[self.pick(had.len())];
        let other = self.pick(wrong.parts.len());
        let others = wrong.parts[other].lower.clone().filter(|_| other != at);
        let lower = &mut wrong.parts[at].lower;
        let size = lower.as_ref().map_or(0, |lower| lower.size());
        let empty = Arc::new(SimDevice::new(size, 0));
        *lower = match self.random.below(3) {
            0 => None,
            1 => Some(empty),
            _ => Some(others.unwrap_or(empty)),
        };
        let missing = lower.is_none();
        let says = |error: &StoreError| match error {
            StoreError::LowerMissing => missing,
            StoreError::Lower { .. } => !missing,
            _ => false,
        };
        match self.try_open(&wrong) {
            Err(OpenError::Store(StoreError::Lane { error, .. })) if says(&error) => Ok(()),
            Err(OpenError::Store(error)) if says(&error) => Ok(()),
            opened => Err(format!("a start with a wrong lower device: {opened:?}")),
        }
    }

    /// Begins a start and interrupts it with a power loss. If `joins` names a lane, the power
    /// usually fails while that lane's new lower device joins the lane, or just after. `machine` is
    /// then as the power loss leaves it.
    fn interrupt_start(&mut self, machine: &mut Machine, joins: Option<usize>) -> Check {
        let (devices, within): (Vec<_>, _) = match joins {
            Some(at) => (machine.parts[at].devices().collect(), 8),
            None => (machine.devices().collect(), 20),
        };
        devices[self.pick(devices.len())].stop_at(1 + self.random.below(within));
        let opened = self.try_open(machine);
        if let (Err(error), false) = (opened, machine.is_stopped()) {
            return Err(format!("a start that nothing interrupted: {error}"));
        }
        *machine = machine.crash(|| self.random.bits());
        self.keeps_written = false;
        Ok(())
    }
}
