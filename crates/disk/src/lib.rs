//! Where bytes are kept: a file or a block device, or one that is simulated, behind one trait.
//!
//! This crate knows offsets and nothing of what lies there. Whoever uses a [`Device`] may rely on
//! what its trait says and on nothing more; [`SimDevice`] does everything else to it that a power
//! loss or a failing device can do, from a seed, so that reliance on anything more is found in a
//! test.

mod device;
mod error;
mod file;
mod sim;

pub use device::Device;
pub use error::OpenError;
pub use file::{FILE_NAME, FileDevice, MAX_DEFAULT_SIZE};
pub use sim::{Counts, Failure, Fault, Operation, SimDevice, Stopped};
