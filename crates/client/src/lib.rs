//! A small blocking memcached client: text and meta commands over TCP and Unix sockets.
//!
//! It exists so that the lab, the live view, `larder ctl` and the tests speak to any
//! memcached-compatible server through the same few lines, without a foreign driver's opinions in
//! between. One [`Client`] is one connection, one request at a time unless a [`Pipeline`] is used.
//! There is no pooling, no retry and no key distribution.
//!
//! ```no_run
//! use larder_client::Client;
//!
//! let mut client = Client::connect("127.0.0.1:11211")?;
//! client.set(b"fig", b"sweet", 0, 60)?; // flags 0, for a minute
//! assert_eq!(client.get(b"fig")?.map(|item| item.value), Some(b"sweet".to_vec()));
//! client.set(b"visits", b"41", 0, 0)?;
//! assert_eq!(client.incr(b"visits", 1)?, Some(42));
//! # Ok::<(), larder_client::Error>(())
//! ```

mod address;
mod client;
mod error;
mod meta;
mod pipeline;
pub mod reply;
mod stream;
mod text;

pub use address::{Address, DEFAULT_PORT};
pub use client::{Client, Options};
pub use error::Error;
pub use meta::MetaReply;
pub use pipeline::{Pipeline, Reply};
pub use stream::Stream;
pub use text::{Item, Stored};

/// What a client call answers.
pub type Result<T> = std::result::Result<T, Error>;
