//! Events of a world's machine: failing devices, slow commits, the end of the process, power
//! losses, restarts, and flipped bits.

use super::machine::Machine;
use super::{Check, DurableWorld, HeldCommit};
use larder_disk::{Device, Failure as DeviceFailure, Fault, Operation, SimDevice};
use larder_engine::{ManualCleaner, Session};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Offset in bytes at which the segments and their metas begin on a device.
const GROUPS: u64 = 131_072;

/// How the store was stopped before a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The engine was closed. The machine may have been rebooted.
    Clean,
    /// The process was killed.
    Kill,
    /// The machine lost power.
    PowerLoss,
}

impl DurableWorld {
    pub(super) fn plan_fault(&mut self) {
        let operation = match self.random.below(4) {
            0 => Operation::Write,
            1 => Operation::Read,
            _ => Operation::Sync,
        };
        let device = Arc::clone(self.some_device());
        let failure = if self.random.one_in(2) { DeviceFailure::Io } else { DeviceFailure::Full };
        let nth = device.counts().of(operation) + 1 + self.random.below(20);
        let times = 1 + self.random.below(3);
        device.plan(Fault { operation, at: nth, times, failure });
    }

    /// Plans a power loss during one of the next writes or syncs.
    pub(super) fn plan_power_loss(&mut self) {
        self.plan_power_loss_within(30);
    }

    /// Plans a power loss during one of the next `changes` writes or syncs of a random device.
    pub(super) fn plan_power_loss_within(&mut self, changes: u64) {
        let device = Arc::clone(self.some_device());
        device.stop_at(device.counts().changes() + 1 + self.random.below(changes));
    }

    /// Returns a random device of the machine.
    pub(super) fn some_device(&mut self) -> &Arc<SimDevice> {
        let at = self.pick(self.machine.devices().count());
        self.machine.devices().nth(at).expect("it was counted")
    }

    /// Begins a commit of a random lane. The commit waits inside the device, either before its
    /// first write or in its sync. All other operations continue meanwhile.
    pub(super) fn begin_held_commit(&mut self) -> Check {
        let lane = self.some_lane();
        self.begin_held_commit_in(lane)
    }

    pub(super) fn begin_held_commit_in(&mut self, lane: usize) -> Check {
        self.finish_held_commit()?;
        let device = self.device_of(lane)?;
        let writes = self.random.one_in(3);
        device.hold(if writes { Operation::Write } else { Operation::Sync });
        let engine = Arc::clone(&self.engine);
        let committer = thread::spawn(move || engine.commit_lane(lane));
        while !committer.is_finished() && !device.wait_until_held(Duration::from_micros(100)) {}
        let waits = !committer.is_finished();
        self.held_commit = Some(HeldCommit { lane, device, committer, writes });
        // If the commit has already finished, it had nothing to write, or it failed before the call
        // in which it should wait.
        if waits { Ok(()) } else { self.finish_held_commit() }
    }

    /// Makes early writes on random lanes, perhaps during the sync of a commit.
    pub(super) fn write_early(&mut self) -> Check {
        self.note_failures();
        for lane in 0..self.engine.lanes().len() {
            // While a commit waits before its first write, an early write of the same lane would
            // wait for the commit. So that lane is left out.
            let waits =
                self.held_commit.as_ref().is_some_and(|held| held.lane == lane && held.writes);
            if !waits && !self.early.one_in(3) && self.engine.write_early(lane) {
                self.counts.early += 1;
                self.model.written(lane);
            }
        }
        Ok(())
    }

    /// Sometimes makes early writes, more often while a commit waits in its sync. Afterwards it
    /// sometimes ends the process or cuts the power. With several devices, it sometimes lets every
    /// device's next sync fail after an early write, while partitions move.
    pub(super) fn try_early_writes(&mut self) -> Check {
        let slow = self.held_commit.as_ref().is_some_and(|held| !held.writes);
        if self.early.one_in(if slow { 3 } else { 8 }) {
            self.write_early()?;
        }
        if self.early.one_in(if slow { 16 } else { 150 }) {
            return if self.early.one_in(2) { self.kill() } else { self.crash() };
        }
        if self.several && self.held_commit.is_none() && self.early.one_in(64) {
            self.write_early()?;
            for device in self.machine.devices() {
                let next = device.counts().syncs + 1;
                device.plan(Fault::once(Operation::Sync, next, DeviceFailure::Io));
            }
            self.move_some()?;
        }
        Ok(())
    }

    /// After a failed write or sync, forgets which states were written early, because the device
    /// may have lost them.
    pub(super) fn note_failures(&mut self) {
        let failed = self.machine.failed_changes();
        if failed != self.failed_changes {
            self.failed_changes = failed;
            self.model.forget_written();
        }
    }

    /// Lets the commit that waits inside a device finish, if there is one, and updates the model.
    pub(super) fn finish_held_commit(&mut self) -> Check {
        if let Some(held) = self.held_commit.take() {
            held.device.release();
            held.committer.join().map_err(|_| "the committer has panicked")?;
            self.settle();
            self.tick_all();
        }
        Ok(())
    }

    /// Lets the commit that waits inside a device finish, if there is one, and ignores its result.
    pub(super) fn abandon_held_commit(&mut self) {
        if let Some(held) = self.held_commit.take() {
            held.device.release();
            let _ = held.committer.join();
        }
    }

    /// Returns the machine as a power loss now would leave it.
    fn crashed(&mut self) -> Machine {
        let DurableWorld { machine, random, .. } = self;
        machine.crash(|| random.bits())
    }

    /// Restarts after a power loss.
    pub(super) fn crash(&mut self) -> Check {
        self.note_power_loss();
        let machine = self.crashed();
        self.restart(machine, Stop::PowerLoss)
    }

    /// Restarts after the process was killed. Everything that the process has written is still
    /// there.
    pub(super) fn kill(&mut self) -> Check {
        self.note_failures();
        if self.machine.is_stopped() && self.machine.tiers {
            // One of a lane's two devices may have stopped before the other. The engine treats the
            // stop as a failure of that device, and may have written more to the other one. So it
            // is unknown which early writes the devices have.
            self.model.forget_written();
        }
        self.keeps_written = true;
        self.restart(self.machine.image(), Stop::Kill)
    }

    pub(super) fn clean_stop(&mut self) -> Check {
        self.finish_held_commit()?;
        // A server closes its engine only after its threads have ended, so no session may be awake.
        self.sessions.iter_mut().for_each(Session::sleep);
        let closed = self.engine.close().is_ok();
        if closed {
            self.settle();
            self.model.all_durable();
        }
        let machine = self.crashed();
        self.restart(machine, if closed { Stop::Clean } else { Stop::PowerLoss })
    }

    fn restart(&mut self, mut machine: Machine, stop: Stop) -> Check {
        self.settle();
        self.abandon_held_commit();
        self.restarts += 1;
        let reboots = self.show_clocks(stop);
        let mut same = !self.several || self.change_hardware(&mut machine)?;
        same &= !machine.tiers || self.change_tiers(&mut machine)?;
        if std::mem::take(&mut self.keeps_written) {
            self.counts.kept += self.model.keep_written();
        }
        self.sessions.clear();
        self.cleaner = ManualCleaner::default();
        let least = 8 * machine.parts.len() as u64;
        if self.random.one_in(4) || self.options.memory < least << 20 {
            self.options.memory = (least + self.random.below(12)) << 20;
        }
        self.open(machine)?;
        self.check_opened_at(reboots)?;
        self.open_sessions();
        let recovered = self.engine.recovered().cloned().unwrap_or_default();
        if stop == Stop::Clean && same && !recovered.clean && !self.anomaly.is_armed() {
            return Err(format!("the stop was clean: {recovered:?}"));
        }
        if recovered.damaged_records > 0 || recovered.damaged_segments > 0 {
            return Err(format!("damage without a fault: {recovered:?}"));
        }
        self.restarting = true;
        let checked = self.model.keys().iter().try_for_each(|key| self.check_restarted(key));
        self.restarting = false;
        checked?;
        self.model.all_restarted();
        self.lost.clear();
        Ok(())
    }

    fn open(&mut self, machine: Machine) -> Check {
        self.note_moved();
        self.anomaly.leave(&self.machine, &self.engine);
        let seed = self.random.bits();
        let opened = self.anomaly.open(machine, self.options.clone(), seed);
        let (machine, engine) = opened.map_err(|e| format!("restart {}: {e}", self.restarts))?;
        (self.machine, self.engine) = (machine, engine);
        if let Some(store) = &mut self.options.store {
            store.devices = self.machine.given();
            store.forget.clear();
        }
        Ok(())
    }

    /// Damages the store at the end of a world, by flipping bits of devices or by making ranges
    /// unreadable. Reads all keys, restarts the store and reads all keys again. Before the restart,
    /// every read must return the right item, an error or, if the engine evicts, a miss. After it,
    /// a read may also return a miss or an older item, but only one that the key once had.
    pub(super) fn rot(&mut self) -> Check {
        if self.random.one_in(2) {
            self.spoil()?;
        } else {
            self.flip_bits();
        }
        self.check_all()?;
        if let Some(store) = &mut self.options.store {
            store.accept_damage = true;
        }
        let machine = self.crashed();
        self.sessions.clear();
        self.cleaner = ManualCleaner::default();
        self.open(machine)?;
        self.open_sessions();
        self.model.keys().iter().try_for_each(|key| self.check_damaged(key))
    }

    fn flip_bits(&mut self) {
        for _ in 0..1 << self.random.below(10) {
            let device = Arc::clone(self.some_device());
            let at = GROUPS + self.random.below(device.size() - GROUPS);
            device.flip_bit(at, self.random.below(8) as u32);
        }
    }

    /// Makes ranges of devices unreadable, then continues with normal operations.
    fn spoil(&mut self) -> Check {
        for _ in 0..1 + self.random.below(3) {
            let device = Arc::clone(self.some_device());
            let at = GROUPS + self.random.below(device.size() - GROUPS);
            device.spoil(at..at + (1 << self.random.below(19)));
        }
        for _ in 0..self.random.below(200) {
            self.set()?;
            self.turn();
            self.commit()?;
        }
        Ok(())
    }

    /// Stores a value. A second thread begins a commit after the engine has reserved space for the
    /// value and before it fills the space.
    #[cfg(feature = "breakable")]
    pub(super) fn set_beside_a_commit(&mut self) -> Check {
        use larder_engine::rule;
        use std::sync::atomic::{AtomicBool, Ordering};
        self.finish_held_commit()?;
        let engine = Arc::clone(&self.engine);
        let begun = Arc::new(std::sync::Mutex::new(None));
        let started = Arc::clone(&begun);
        rule::at_next_reservation(Some(Box::new(move || {
            let waits = Arc::new(AtomicBool::new(false));
            let tell = Arc::clone(&waits);
            let committer = thread::spawn(move || {
                rule::tell_waiting(tell);
                engine.commit()
            });
            while !committer.is_finished() && !waits.load(Ordering::Acquire) {
                thread::yield_now();
            }
            *started.lock().expect("no thread panics") = Some(committer);
        })));
        let done = self.set();
        rule::at_next_reservation(None);
        if let Some(committer) = begun.lock().expect("no thread panics").take() {
            committer.join().map_err(|_| "the committer has panicked")?;
            self.settle();
            self.tick_all();
        }
        // The second thread's commit may have closed before the value was filled. The value then
        // counts as part of the next commit.
        self.commit()?;
        done
    }

    /// Only stores a value, because a commit can begin between reserving space and filling it only
    /// with the feature `breakable`.
    #[cfg(not(feature = "breakable"))]
    pub(super) fn set_beside_a_commit(&mut self) -> Check {
        self.set()
    }
}
