//! What happens to the machine of a world: devices that fail, commits that take their time, ends of
//! the process or of the power, restarts, and bits that flip.

use super::{Check, DurableWorld};
use larder_disk::{Failure as DeviceFailure, Fault, Operation, SimDevice};
use larder_engine::ManualCleaner;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Where the segments and their metas begin.
const GROUPS: u64 = 131_072;

impl DurableWorld {
    pub(super) fn plan_fault(&mut self) {
        let operation = match self.random.below(4) {
            0 => Operation::Write,
            1 => Operation::Read,
            _ => Operation::Sync,
        };
        let counts = self.device.counts();
        let done = match operation {
            Operation::Read => counts.reads,
            Operation::Write => counts.writes,
            Operation::Sync => counts.syncs,
        };
        let failure = if self.random.one_in(2) { DeviceFailure::Io } else { DeviceFailure::Full };
        let nth = done + 1 + self.random.below(20);
        let times = 1 + self.random.below(3);
        self.device.plan(Fault { operation, at: nth, times, failure });
    }

    /// The power goes in the middle of a write or a sync.
    pub(super) fn plan_power_loss(&mut self) {
        self.device.stop_at(self.device.counts().changes() + 1 + self.random.below(30));
    }

    /// Begins a commit that waits inside of the device, before its first write or in its sync, while
    /// everything else goes on.
    pub(super) fn take_off(&mut self) -> Check {
        self.land()?;
        let writes = self.random.one_in(3);
        self.device.hold(if writes { Operation::Write } else { Operation::Sync });
        let engine = Arc::clone(&self.engine);
        let committer = thread::spawn(move || engine.commit());
        while !committer.is_finished() && !self.device.wait_until_held(Duration::from_micros(100)) {
        }
        let waits = !committer.is_finished();
        self.flight = Some(committer);
        // It had nothing to write, or failed before it came to where it should wait.
        if waits { Ok(()) } else { self.land() }
    }

    /// Ends the commit that waits, if one does.
    pub(super) fn land(&mut self) -> Check {
        if let Some(committer) = self.flight.take() {
            self.device.release();
            committer.join().map_err(|_| "the committer has panicked")?;
            self.settle();
            self.tick_all();
        }
        Ok(())
    }

    /// Nobody hears any more what becomes of the commit that waits.
    pub(super) fn abandon_flight(&mut self) {
        if let Some(committer) = self.flight.take() {
            self.device.release();
            let _ = committer.join();
        }
    }

    /// Power loss.
    pub(super) fn crash(&mut self) -> Check {
        let device = self.device.crash(self.random.bits());
        self.restart(device, false)
    }

    /// The process dies; everything that it wrote is there.
    pub(super) fn kill(&mut self) -> Check {
        self.restart(self.device.image(), false)
    }

    pub(super) fn clean_stop(&mut self) -> Check {
        self.land()?;
        let closed = self.engine.close().is_ok();
        if closed {
            self.settle();
            self.model.all_durable();
        }
        let device = self.device.crash(self.random.bits());
        self.restart(device, closed)
    }

    fn restart(&mut self, device: SimDevice, clean: bool) -> Check {
        self.settle();
        self.abandon_flight();
        self.restarts += 1;
        self.sessions.clear();
        self.cleaner = ManualCleaner::default();
        if self.random.one_in(4) {
            self.options.memory = (8 + self.random.below(12)) << 20;
        }
        self.open(device)?;
        let recovered = self.engine.recovered().cloned().unwrap_or_default();
        if clean && !recovered.clean && !self.anomaly.is_armed() {
            return Err(format!("clean should be {clean}: {recovered:?}"));
        }
        if recovered.damaged_records > 0 || recovered.damaged_segments > 0 {
            return Err(format!("damage without a fault: {recovered:?}"));
        }
        self.restarting = true;
        let checked = self.model.keys().iter().try_for_each(|key| self.check_restarted(key));
        self.restarting = false;
        checked?;
        self.model.all_restarted();
        Ok(())
    }

    fn open(&mut self, device: SimDevice) -> Check {
        self.anomaly.leave(&self.device, &self.engine);
        let seed = self.random.bits();
        let opened = self.anomaly.open(Arc::new(device), self.options.clone(), seed);
        let (device, engine) = opened.map_err(|e| format!("restart {}: {e}", self.restarts))?;
        (self.device, self.engine) = (device, engine);
        if let Some(store) = &mut self.options.store {
            store.devices[0].device = Arc::<SimDevice>::clone(&self.device);
        }
        self.open_sessions();
        Ok(())
    }

    /// Bits flip where they lie at rest, which ends a world: every read is answered with the truth,
    /// or as a miss or an error, and after a restart with something that was written once.
    pub(super) fn rot(&mut self) -> Check {
        let size = self.options.store.as_ref().map_or(0, |store| store.devices[0].device.size());
        for _ in 0..1 << self.random.below(10) {
            let at = GROUPS + self.random.below(size - GROUPS);
            self.device.flip_bit(at, self.random.below(8) as u32);
        }
        self.check_all()?;
        if let Some(store) = &mut self.options.store {
            store.accept_damage = true;
        }
        let device = self.device.crash(self.random.bits());
        self.sessions.clear();
        self.cleaner = ManualCleaner::default();
        self.open(device)?;
        self.model.keys().iter().try_for_each(|key| self.check_damaged(key))
    }

    /// A commit begins between reserving space for a value and filling it.
    #[cfg(feature = "breakable")]
    pub(super) fn set_beside_a_commit(&mut self) -> Check {
        use larder_engine::rule;
        use std::sync::atomic::{AtomicBool, Ordering};
        self.land()?;
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
            *started.lock().expect("nobody panics") = Some(committer);
        })));
        let done = self.set();
        rule::at_next_reservation(None);
        self.flight = begun.lock().expect("nobody panics").take();
        self.land()?;
        // What was filled beside the commit is acknowledged with the next.
        self.commit()?;
        done
    }

    /// Only with the feature `breakable` can others run there.
    #[cfg(not(feature = "breakable"))]
    pub(super) fn set_beside_a_commit(&mut self) -> Check {
        self.set()
    }
}
