//! Translates requests into engine calls and outcomes into replies. Only here do the protocols and
//! the engine meet. `text.rs` and `meta.rs` answer the text protocol, `binary.rs` the binary one.
//! The connection calls them with keys that it has already hashed and prefetched.

pub(crate) mod binary;
mod context;
mod count;
mod dialect;
mod dump;
mod execution;
mod expiry;
mod intent;
pub(crate) mod meta;
mod points;
mod prefix;
mod properties;
mod refusal;
mod stats;
pub(crate) mod text;

pub(crate) use context::{CommandCounters, CommandTotals};
pub use context::{Hooks, ServerContext, Switches};
pub(crate) use dialect::{Dialect, FailureReply};
pub(crate) use dump::Dump;
pub(crate) use execution::{
    Executed, Execution, LongValue, PartOfKeys, Sent, Unready, engine_mode, put_value,
};
pub(crate) use expiry::expiry;
pub(crate) use points::Points;
pub(crate) use prefix::PrefixStats;
pub(crate) use properties::Properties;
pub(crate) use refusal::refusal_line;
