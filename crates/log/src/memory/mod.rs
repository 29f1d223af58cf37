//! Memory. The modules here take it from the operating system, count it, divide it into frames, and
//! decide when freed memory may be used again.

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
