//! The plan of what goes wrong, and when.

use std::fmt;
use std::io;

/// A call to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `read_at`, also through `read_stored`.
    Read,
    /// `write_at`, also through `write_directly`; `prepare`, `grow` and `shrink`.
    Write,
    /// `sync`.
    Sync,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// `EIO`: the device returned an error.
    Io,
    /// `ENOSPC`: there is no free space.
    Full,
}

impl Failure {
    pub(super) fn error(self) -> io::Error {
        io::Error::from_raw_os_error(match self {
            Failure::Io => libc::EIO,
            Failure::Full => libc::ENOSPC,
        })
    }
}

/// A planned fault: calls of one kind that fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind of call.
    pub operation: Operation,
    /// The number of the first call that fails. Calls of this kind are counted from 1, beginning
    /// with the creation of the device (see [`Counts`]).
    pub at: u64,
    /// The number of successive calls that fail. With `u64::MAX`, all later calls fail.
    pub times: u64,
    /// The error.
    pub failure: Failure,
}

impl Fault {
    /// Returns a fault of the `at`-th call of this kind only.
    pub fn once(operation: Operation, at: u64, failure: Failure) -> Fault {
        Fault { operation, at, times: 1, failure }
    }

    /// Returns a fault of the `at`-th call of this kind and of all later ones, until
    /// [`SimDevice::mend`](super::SimDevice::mend).
    pub fn lasting(operation: Operation, at: u64, failure: Failure) -> Fault {
        Fault { operation, at, times: u64::MAX, failure }
    }

    pub(super) fn hits(&self, operation: Operation, call: u64) -> bool {
        self.operation == operation && call >= self.at && call - self.at < self.times
    }
}

/// The number of calls to a simulated device, including failed ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls of `read_at`.
    pub reads: u64,
    /// Calls of `write_at` and `prepare`, and of `grow` and `shrink`.
    pub writes: u64,
    /// Calls of `sync`.
    pub syncs: u64,
}

impl Counts {
    /// Returns the number of writes and syncs. Only these calls change the state that a crash
    /// leaves.
    pub fn changes(&self) -> u64 {
        self.writes + self.syncs
    }

    /// Returns the number of calls of a kind.
    pub fn of(&self, operation: Operation) -> u64 {
        match operation {
            Operation::Read => self.reads,
            Operation::Write => self.writes,
            Operation::Sync => self.syncs,
        }
    }

    /// Counts a call and returns its number among those of its kind.
    pub(super) fn count(&mut self, operation: Operation) -> u64 {
        let counter = match operation {
            Operation::Read => &mut self.reads,
            Operation::Write => &mut self.writes,
            Operation::Sync => &mut self.syncs,
        };
        *counter += 1;
        *counter
    }
}

/// The error of every call to a simulated device after its machine has stopped. The test can then
/// only take copies of the device, for example with [`SimDevice::crash`](super::SimDevice::crash).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

impl Stopped {
    /// Returns true if `error` says that the machine has stopped. A planned fault returns other
    /// errors.
    pub fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Stopped>())
    }

    pub(super) fn error() -> io::Error {
        io::Error::new(io::ErrorKind::NotConnected, Stopped)
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the simulated machine has stopped")
    }
}

impl std::error::Error for Stopped {}
