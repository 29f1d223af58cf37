//! Translates requests into engine calls, and the engine's outcomes into replies. No other module
//! translates between memcached's protocols and the engine. `text.rs` and `meta.rs` answer the text
//! protocol, `binary.rs` answers the binary protocol. The connection hashes and prefetches the keys
//! before it calls these modules.

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
