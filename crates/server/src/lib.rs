//! The server: sockets, connections and commands over an embedded engine.

mod admin;
mod clock;
pub mod command;
pub mod connection;
mod guard;
pub mod net;
pub mod notify;
pub mod process;
pub mod server;
pub mod settings;
pub mod signals;
pub mod stats;
