//! The environment in which a round runs the server, and the background work that the end of the
//! round should interrupt.

use crate::activity::Work;
use crate::devices::Layout;

/// The environment of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Machine {
    /// `kill -9` on the file system of `--directory`.
    Plain,
    /// `kill -9`, with several devices that are added and drained.
    Devices,
    /// `kill -9`, with several devices so small that the server evicts.
    Evict,
    /// `kill -9`, with a small fast device and a big lower one in each lane.
    Tiers,
    /// Power loss, on a disk of the test's own (FUSE).
    Power,
    /// Power loss, with several devices that are added and drained. All lose power at once.
    PowerDevices,
    /// Power loss, with a small fast device and a big lower one in each lane. All lose power at
    /// once.
    PowerTiers,
}

impl Machine {
    pub(crate) fn all() -> &'static [Machine] {
        clap::ValueEnum::value_variants()
    }

    pub(crate) fn loses_power(self) -> bool {
        matches!(self, Machine::Power | Machine::PowerDevices | Machine::PowerTiers)
    }

    pub(crate) fn evicts(self) -> bool {
        self == Machine::Evict
    }

    /// Returns the layout of a store with several devices, or `None` for machines with one device.
    /// `mib` is the size in MiB of a device that has room for everything.
    pub(crate) fn layout(self, mib: u64) -> Option<Layout> {
        let one = |device_mib| Some(Layout { device_mib, lower_mib: None, most: 4 });
        match self {
            Machine::Plain | Machine::Power => None,
            Machine::Devices | Machine::PowerDevices => one(mib),
            Machine::Evict => one(EVICTING_MIB),
            Machine::Tiers | Machine::PowerTiers => {
                Some(Layout { device_mib: FAST_MIB, lower_mib: Some(mib / 2), most: 3 })
            }
        }
    }

    /// Returns true if the devices are so small that the load of one or a few rounds fills them.
    pub(crate) fn fills(self) -> bool {
        matches!(self, Machine::Evict | Machine::Tiers | Machine::PowerTiers)
    }

    /// Returns the background work for which a round waits before its end; `None` with one device.
    pub(crate) fn work(self) -> Option<Work> {
        match self {
            Machine::Plain | Machine::Power => None,
            Machine::Devices | Machine::PowerDevices => Some(Work::Drain),
            Machine::Evict => Some(Work::Evict),
            Machine::Tiers | Machine::PowerTiers => Some(Work::Cool),
        }
    }
}

/// Size in MiB of a device so small that it is full after a few rounds.
const EVICTING_MIB: u64 = 12;
/// Size in MiB of a fast device so small that it cannot keep what a round stores.
const FAST_MIB: u64 = 24;

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Machine::Plain => "kill -9",
            Machine::Devices => "kill -9, several devices",
            Machine::Evict => "kill -9, several devices, evicting",
            Machine::Tiers => "kill -9, tiers",
            Machine::Power => "power loss",
            Machine::PowerDevices => "power loss, several devices",
            Machine::PowerTiers => "power loss, tiers",
        })
    }
}
