//! The lab: measures Larder and other servers, its peers, by the same rules.
//!
//! The latency of a request begins when the request is due (open loop). In runs that are marked
//! "closed loop", it begins when the request is sent. Figures do not include the warm-up. A wrong
//! answer voids the run. Results of single loads have the cost of the generator beside the figures.
//!
//! A load against a server in the same process:
//!
//! ```
//! use larder_bench::{Load, Shape};
//! use larder_client::Address;
//! use larder_server::server::Server;
//! use larder_server::settings::{ListenAddress, Settings};
//! use std::time::Duration;
//!
//! let mut settings = Settings::default();
//! settings.listen = vec![ListenAddress { host: "127.0.0.1".to_owned(), port: Some(0) }];
//! settings.admin = None;
//! let server = Server::start(settings)?;
//! let mut load = Load::new(Address::Tcp(server.addresses()[0].to_string()));
//! (load.duration, load.requests, load.warm_up) = (None, Some(1000), Duration::ZERO);
//! let summary = load.run(Shape::default())?;
//! // The server is empty, so each get is answered by a miss.
//! assert_eq!((summary.unanswered, summary.hit_ratio), (0, Some(0.0)));
//! assert!(summary.latency.mean_us > 0.0);
//! server.shutdown(Duration::from_secs(1))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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
