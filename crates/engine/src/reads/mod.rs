//! Reads of records that are only on a device: the records that a session has fetched, and the
//! threads that read for sessions without a read queue.

mod fetched;
mod large;
mod readers;
mod requests;

pub(crate) use fetched::{Fetched, LaneReads};
pub(crate) use readers::spawn;
pub(crate) use requests::{Charge, Readers};
