//! The clocks of a world's machine. A restart without a reboot must continue the store's time
//! exactly, if the machine tells its boots apart. At any restart, the wall clock may be up to an
//! hour ahead or behind.

use super::power::Stop;
use super::{Check, DurableWorld, START};
use larder_disk::Random;
use larder_engine::{MachineTime, NANOS};

/// Salt of the random numbers that decide whether the wall clock of a world steps. Tests replay the
/// seeds of bugs that need no steps. With this salt, the wall clock does not step in the worlds of
/// these seeds.
const STEPS: u64 = 0xc132f;

/// The number of seconds by which the time of a store may be set back at a reboot, counted from its
/// last commit.
const FORGOTTEN: u32 = 10;

/// The machine's clocks. The world's time is the time of its store.
pub(super) struct Clocks {
    random: Random,
    /// True if the wall clock steps while the server is down.
    steps: bool,
    /// The id of the boot; 0 if the machine does not tell its boots apart.
    boot: u128,
    /// The world's time minus the time since the boot, in seconds.
    offset: u32,
    /// The store's time must not begin before this second.
    least: u32,
    /// The latest second before the last restart or at its end.
    pub(super) latest: u32,
}

impl Clocks {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ STEPS);
        // With the feature `breakable`, the clock never steps, because steps would delay the
        // detection of broken rules that do not concern the time.
        let steps = random.one_in(2) && !cfg!(feature = "breakable");
        let boot = u128::from(!(steps && random.one_in(4)));
        Clocks { random, steps, boot, offset: START - 1000, least: 0, latest: START }
    }

    /// Returns what the clocks show when the store's time should be `now`.
    pub(super) fn show(&mut self, now: u32) -> MachineTime {
        let step = match self.random.below(6) {
            _ if !self.steps => 0,
            0..=2 => self.random.below(100),
            3..=4 => self.random.below(400),
            _ => 3600,
        } as u32;
        let wall = if self.random.one_in(2) { now + step } else { now - step };
        let since_boot = u64::from(now - self.offset) * NANOS;
        MachineTime { wall: u64::from(wall) * NANOS, boot_id: self.boot, since_boot }
    }

    /// Reboots the machine.
    pub(super) fn reboot(&mut self, now: u32) {
        if self.boot != 0 {
            self.boot += 1;
        }
        self.offset = now - self.random.below(1000) as u32;
    }
}

impl DurableWorld {
    /// Shows the machine's clocks to the next start of the store. Returns true if the machine was
    /// rebooted before.
    pub(super) fn show_clocks(&mut self, stop: Stop) -> bool {
        let reboots = match stop {
            Stop::Kill => false,
            Stop::Clean => self.clocks.random.one_in(2),
            Stop::PowerLoss => true,
        };
        if reboots {
            self.clocks.reboot(self.now);
        }
        if let Some(store) = &mut self.options.store {
            store.opened = self.clocks.show(self.now);
        }
        reboots
    }

    /// Checks the time at which the store was opened, and sets the world's time to it.
    pub(super) fn check_opened_at(&mut self, reboots: bool) -> Check {
        let (now, least) = (self.now, self.clocks.least);
        let store = self.options.store.as_ref().ok_or("no store")?;
        let wall = (store.opened.wall / NANOS) as u32;
        let opened = (self.engine.opened_at().ok_or("no store")? / NANOS) as u32;
        // The store continues from the wall clock, or from the time that it recorded.
        let right = if reboots || store.opened.boot_id == 0 {
            opened >= least && (opened == wall || wall < opened && opened <= now)
        } else {
            opened == now
        };
        if !right {
            return Err(format!("opened at {opened}, {now} before, wall {wall}, least {least}"));
        }
        self.clocks.offset = opened - (self.now - self.clocks.offset);
        (self.clocks.least, self.clocks.latest) = (opened, now.max(opened));
        self.counts.set_back += u64::from(opened < now);
        self.now = opened;
        Ok(())
    }

    /// Notes that a commit of all lanes succeeded. The time that the store has recorded is now at
    /// most [`FORGOTTEN`] old.
    pub(super) fn note_commit(&mut self) {
        self.clocks.least = self.clocks.least.max(self.now - FORGOTTEN);
    }
}
