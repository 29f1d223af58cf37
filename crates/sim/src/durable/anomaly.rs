//! Worlds with a single anomaly, such as a failure of the world's nth write. Tests repeat such a
//! world for n = 1, 2, 3 … until the world has no nth write. So the tests cover every place where
//! the anomaly can happen.

use super::machine::Machine;
use super::{Check, DurableWorld};
use crate::world::{Failure, Plan};
use larder_disk::{Counts, Failure as DeviceFailure, Fault, Operation, SimDevice};
use larder_engine::{Engine, Options};
use std::sync::Arc;

/// An event that happens once in a world. The number says at which call, write, sync or request it
/// happens, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anomaly {
    /// A call to the device fails.
    Call(Operation, u64),
    /// The power fails during a write or sync.
    PowerLoss(u64),
    /// A request for memory is refused. Such a request is for a frame, a mapping, an index page or
    /// a part of the budget.
    Memory(u64),
}

/// The anomaly of a world, if it has one, with the counts that tell when it happens. These counts
/// continue over all lives of a store. A life lasts from a start to the next stop or crash, and has
/// its own machine and engine.
pub(super) struct Armed {
    anomaly: Option<Anomaly>,
    /// The index of the device that the anomaly concerns: its call fails, or the power fails while
    /// it writes or syncs.
    victim: usize,
    /// Calls to that device in earlier lives.
    calls: Counts,
    /// Memory requests in earlier lives.
    requests: u64,
    /// True once a start has succeeded, so the devices hold a store.
    created: bool,
}

impl Armed {
    pub(super) fn new(anomaly: Option<Anomaly>, victim: usize) -> Self {
        Armed { anomaly, victim, calls: Counts::default(), requests: 0, created: false }
    }

    pub(super) fn is_armed(&self) -> bool {
        self.anomaly.is_some()
    }

    /// Adds the counts of a life that ends.
    pub(super) fn leave(&mut self, machine: &Machine, engine: &Engine) {
        self.requests += engine.memory_requests();
        self.leave_machine(machine);
    }

    fn counts(&self, machine: &Machine) -> Counts {
        machine.devices().nth(self.victim).map_or_else(Counts::default, |device| device.counts())
    }

    fn leave_machine(&mut self, machine: &Machine) {
        let counts = self.counts(machine);
        self.calls.reads += counts.reads;
        self.calls.writes += counts.writes;
        self.calls.syncs += counts.syncs;
    }

    /// Begins a life by starting the engine. If the start fails because of the anomaly, repeats the
    /// start, as an operator would. If the anomaly prevented the creation of the store, the devices
    /// are empty for the next attempt.
    pub(super) fn open(
        &mut self,
        mut machine: Machine,
        mut options: Options,
        seed: u64,
    ) -> Result<(Machine, Arc<Engine>), String> {
        let armed = self.is_armed();
        loop {
            if let Some(device) = machine.devices().nth(self.victim) {
                self.arm(device);
            }
            if let Some(store) = &mut options.store {
                store.devices = machine.given();
            }
            let refused = match self.anomaly {
                Some(Anomaly::Memory(nth)) => nth.saturating_sub(self.requests),
                _ => 0,
            };
            match Engine::open_refusing_memory(options.clone(), refused) {
                Ok(engine) => {
                    self.created = true;
                    return Ok((machine, engine));
                }
                Err(error) if !armed => return Err(error.to_string()),
                Err(_) if refused > 0 => self.requests += refused,
                Err(error) => {
                    let before = self.calls;
                    self.leave_machine(&machine);
                    if !self.reached(self.calls) || self.reached(before) {
                        return Err(error.to_string());
                    }
                    machine = match self.created {
                        true => machine.crash(|| seed),
                        false => machine.emptied(seed),
                    };
                }
            }
        }
    }

    fn arm(&self, device: &SimDevice) {
        match self.anomaly {
            Some(Anomaly::Call(operation, nth)) if nth > self.calls.of(operation) => {
                let nth = nth - self.calls.of(operation);
                let failure =
                    if nth.is_multiple_of(2) { DeviceFailure::Io } else { DeviceFailure::Full };
                device.plan(Fault::once(operation, nth, failure));
            }
            Some(Anomaly::PowerLoss(nth)) if nth > self.calls.changes() => {
                device.stop_at(nth - self.calls.changes());
            }
            _ => {}
        }
    }

    fn reached(&self, calls: Counts) -> bool {
        match self.anomaly {
            Some(Anomaly::Call(operation, nth)) => calls.of(operation) >= nth,
            Some(Anomaly::PowerLoss(nth)) => calls.changes() >= nth,
            Some(Anomaly::Memory(_)) | None => false,
        }
    }

    /// Returns true if the anomaly has happened by now.
    pub(super) fn was_reached(&self, machine: &Machine, engine: &Engine) -> bool {
        let now = self.counts(machine);
        let calls = Counts {
            reads: self.calls.reads + now.reads,
            writes: self.calls.writes + now.writes,
            syncs: self.calls.syncs + now.syncs,
        };
        let requests = self.requests + engine.memory_requests();
        let refused = matches!(self.anomaly, Some(Anomaly::Memory(nth)) if requests >= nth);
        refused || self.reached(calls)
    }
}

impl DurableWorld {
    /// Runs a world of three lives with `plan.steps` operations each. The first life ends with a
    /// clean stop, the second with a kill, and the third with a power loss. Otherwise nothing but
    /// `anomaly` goes wrong. Returns true if the anomaly happened.
    ///
    /// # Errors
    /// Returns the first violation.
    pub fn run_with(plan: Plan, anomaly: Anomaly) -> Result<bool, Failure> {
        let fail = |step, what| Failure { seed: plan.seed, step, what };
        let mut world =
            DurableWorld::new(plan.seed, Some(anomaly)).map_err(|what| fail(0, what))?;
        let lives: [fn(&mut DurableWorld) -> Check; 3] =
            [DurableWorld::clean_stop, DurableWorld::kill, DurableWorld::crash];
        for (life, end) in (0..).zip(lives) {
            for step in 0..plan.steps {
                let step = life * plan.steps + step;
                world.quiet_step().map_err(|what| fail(step, what))?;
            }
            world.survive(end).map_err(|what| fail((life + 1) * plan.steps, what))?;
        }
        world.check_all().map_err(|what| fail(3 * plan.steps, what))?;
        Ok(world.anomaly.was_reached(&world.machine, &world.engine))
    }

    fn quiet_step(&mut self) -> Check {
        if !self.is_sync() && self.early.one_in(8) {
            self.survive(DurableWorld::write_early)?;
        }
        self.survive(|world| match world.random.below(40) {
            0 => world.begin_held_commit(),
            1..=4 => world.finish_held_commit(),
            5..=12 if world.several => world.rearrange(),
            13..=16 if world.machine.tiers => world.pile_up(),
            _ => world.work(),
        })
    }

    /// Runs `act`. If the power fails during `act`, ignores the result and restarts.
    fn survive(&mut self, act: impl FnOnce(&mut Self) -> Check) -> Check {
        let done = act(self);
        if self.machine.is_stopped() { self.crash() } else { done }
    }
}
