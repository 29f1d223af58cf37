//! Memory: how it is taken from the operating system, counted, divided into frames, and when freed
//! memory may be used again.

pub mod budget;
pub mod epoch;
pub(crate) mod frames;
pub mod mapping;
pub(crate) mod pins;
pub mod prefetch;
pub(crate) mod table;

pub use budget::{Budget, Buffers};
pub use epoch::{Appending, Epochs, Participant};
pub use frames::CLEANER_RESERVE;
pub use mapping::{Mapping, Region};
pub use pins::Pin;
