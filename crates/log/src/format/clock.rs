//! The time of a store. Invariant: a start never continues from an earlier time than the field
//! `clock` of any lane's superblock. If the server restarts without a reboot of the machine, the
//! time continues exactly, even if the wall clock is changed. For this, the superblock has the id
//! of the boot, and the difference between the store's time and the time since that boot.

use super::Superblock;

/// Nanoseconds per second.
pub const NANOS: u64 = 1_000_000_000;

/// The machine's clocks at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineTime {
    /// The wall clock, in nanoseconds since the Unix epoch.
    pub wall: u64,
    /// The id of the machine's boot; 0 if unknown.
    pub boot_id: u128,
    /// Nanoseconds since that boot, including those in which the machine was suspended.
    pub since_boot: u64,
}

impl MachineTime {
    /// Returns the time from which a store continues, in nanoseconds since the Unix epoch. `lanes`
    /// are the superblocks of the store's lanes.
    pub fn of_store<'s>(&self, lanes: impl IntoIterator<Item = &'s Superblock>) -> u64 {
        let (mut remembered, mut continued) = (0, None);
        for superblock in lanes {
            remembered = remembered.max(u64::from(superblock.clock) * NANOS);
            if self.boot_id != 0 && superblock.boot_id == self.boot_id {
                let time = self.since_boot.saturating_add_signed(superblock.boot_offset);
                continued = continued.max(Some(time));
            }
        }
        remembered.max(continued.unwrap_or(self.wall))
    }
}

impl Superblock {
    /// Notes that the store's time was `time` when the machine's clocks showed `machine`.
    pub fn set_time(&mut self, time: u64, machine: &MachineTime) {
        self.clock = self.clock.max(u32::try_from(time / NANOS).unwrap_or(u32::MAX));
        let offset = i128::from(time) - i128::from(machine.since_boot);
        let offset = offset.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        self.boot_id = machine.boot_id;
        self.boot_offset = if machine.boot_id == 0 { 0 } else { offset };
    }
}
