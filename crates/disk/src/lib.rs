//! Where bytes are kept: a file or a block device, or one that is simulated, behind one trait.
//!
//! This crate knows offsets and nothing of what lies there. Whoever uses a [`Device`] may rely on
//! what its trait says and on nothing more; [`SimDevice`] does everything else to it that a power
//! loss or a failing device can do, from a seed, so that reliance on anything more is found in a
//! test:
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
//! let error = device.write_at(8192, b"three").unwrap_err(); //      change 5: the power goes
//! assert!(Stopped::is(&error));
//!
//! // Ten of the states in which the machine may come up again.
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
mod joined;
mod random;
mod reads;
mod sim;
mod spare;

pub use device::Device;
pub use error::OpenError;
pub use file::{DEFAULT_SIZE, FILE_NAME, FileDevice, Glance};
pub use joined::Joined;
pub use random::Random;
pub use reads::{Looks, ReadBuffer, ReadQueue};
pub use sim::{Counts, Failure, Fault, Operation, SimDevice, Stopped};
