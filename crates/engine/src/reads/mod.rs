//! Reads of records that are only on a device: what a session has fetched, and the threads that read
//! where sessions cannot by themselves.

mod fetched;
mod readers;
mod requests;

pub(crate) use fetched::{Fetched, LaneReads};
pub(crate) use readers::spawn;
pub(crate) use requests::{Charge, Readers};
