//! The server: sockets, connections and commands over an embedded engine.

pub mod net;
