//! Storage for bytes: a file, a block device, or a simulated device, behind one trait.
//!
//! This crate does not interpret the bytes. Users of a [`Device`] may rely only on the promises of
//! its trait. A real device usually behaves better: for example, it rarely loses a write that was
//! not synced. [`SimDevice`] fails the calls that a test plans. It loses any writes that the
//! promises allow, as a seed decides. So a test finds code that relies on more than the promises:
//!
//! ```
//! use larder_disk::{Device, Failure, Fault, Operation, SimDevice, Stopped};
//!
//! let device = SimDevice::new(1 << 20, 7);
//! device.plan(Fault::once(Operation::Sync, 2, Failure::Io));
//! device.stop_at(5);
//! device.write_at(0, b"one")?; //                                   change 1
//! device.sync()?; //                                                change 2
//! device.write_at(4096, b"two")?; //                                change 3
//! assert!(device.sync().is_err()); //                               change 4: planned
//! let error = device.write_at(8192, b"three").unwrap_err(); //      change 5: the power fails
//! assert!(Stopped::is(&error));
//!
//! // Ten of the states that a restart may find.
//! for seed in 0..10 {
//!     let found = device.crash(seed);
//!     let mut bytes = [0; 3];
//!     found.read_at(0, &mut bytes)?;
//!     assert_eq!(&bytes, b"one");
//! }
//! # Ok::<(), std::io::Error>(())
//! ```

mod device;
mod error;
mod file;
mod histogram;
mod joined;
mod random;
mod reads;
mod sim;
mod spare;
mod timed;

pub use device::Device;
pub use error::OpenError;
pub use file::{DEFAULT_SIZE, FILE_NAME, FileDevice, PathInfo};
pub use histogram::{Histogram, Recorder};
pub use joined::Joined;
pub use random::Random;
pub use reads::{PollBudget, ReadBuffer, ReadQueue};
pub use sim::{Counts, Failure, Fault, Operation, SimDevice, Stopped};
pub use timed::{DeviceHistograms, DeviceTimes, MonotonicClock, Timed};
