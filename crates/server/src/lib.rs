//! The server: sockets, connections and commands over an embedded engine.

pub mod command;
pub mod connection;
pub mod net;
pub mod settings;
