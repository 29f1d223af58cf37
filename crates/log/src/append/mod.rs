//! Appends: what a thread keeps to itself while it writes records.

mod appender;
pub(crate) mod chunks;
mod tally;

pub use appender::Appender;
