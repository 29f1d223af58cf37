//! The server: sockets, connections and commands over an embedded engine.
//!
//! One process can run any number of servers:
//!
//! ```
//! use larder_server::server::Server;
//! use larder_server::settings::{ListenAddress, Settings};
//! use std::time::Duration;
//!
//! let mut settings = Settings::default();
//! settings.listen = vec![ListenAddress { host: "127.0.0.1".to_owned(), port: Some(0) }];
//! settings.admin = None;
//! let server = Server::start(settings)?;
//! let clients_connect_to = server.addresses()[0];
//! assert_ne!(clients_connect_to.port(), 0);
//! server.shutdown(Duration::from_secs(1))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod admin;
mod clients;
mod clock;
pub mod command;
pub mod condition;
pub mod connection;
mod guard;
mod keys;
mod latency;
mod limit_port;
pub mod net;
pub mod notify;
pub mod policies;
pub mod process;
pub mod server;
pub mod settings;
pub mod signals;
mod slow;
pub mod stats;
mod unpark;
mod waits;

pub use clock::machine_time;
pub use larder_disk::Histogram;
