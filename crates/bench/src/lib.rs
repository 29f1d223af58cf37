//! The lab: measures Larder and other servers, its peers, by the same rules.
//!
//! The latency of a request begins when the request is due (open loop). In runs that are marked
//! "closed loop", it begins when the request is sent. Figures do not include the warm-up. A wrong
//! answer voids the run. The cost of the generator is printed beside every figure.

mod commands;
mod error;
mod generator;
pub mod hostile;
mod interrupt;
mod lab;
mod launch;
pub mod machine;
mod plot;
mod process;
mod replay;
mod responder;
mod supervise;
pub mod terminal;
mod trace;
mod wire;
mod workload;

pub use commands::Command;
pub use error::{Error, Result};
pub use generator::{Latencies, Load, Pacing, Second, SecondUse, ServerUse, Summary, VerbCount};
pub use process::{Probe, Sample};
pub use workload::{Distribution, Lengths, Limit, Mix, Shape, Verb};
