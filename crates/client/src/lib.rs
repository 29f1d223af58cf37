//! A small blocking memcached client: text and meta commands over TCP and Unix sockets.
//!
//! It exists so that the lab, the live view, `larder ctl` and the tests speak to any
//! memcached-compatible server through the same few lines, without a foreign driver's opinions in
//! between. One [`Client`] is one connection, with one request at a time. Any other requests, and
//! many at once, are sent as bytes, and their replies read as [`Reply`]. There is no pooling, no
//! retry and no key distribution.
//!
//! ```no_run
//! use larder_client::{Client, Reply};
//!
//! let mut client = Client::connect("127.0.0.1:11211")?;
//! client.set(b"fig", b"sweet", 0, 60)?; // flags 0, for a minute
//! assert_eq!(client.get(b"fig")?.map(|item| item.value), Some(b"sweet".to_vec()));
//! client.set(b"visits", b"41", 0, 0)?;
//! assert_eq!(client.incr(b"visits", 1)?, Some(42));
//! client.send_raw(b"mg fig v\r\ndelete fig\r\n")?;
//! let (reply, value) = client.replies().reply()?;
//! assert_eq!((reply.value_length(), value), (Some(5), &b"sweet"[..]));
//! assert_eq!(client.replies().reply()?.0, Reply::Deleted);
//! # Ok::<(), larder_client::Error>(())
//! ```

mod address;
mod client;
mod error;
mod reader;
mod reply;
mod stream;
mod text;

pub use address::{Address, DEFAULT_PORT};
pub use client::{Client, Options};
pub use error::Error;
pub use reader::ReplyReader;
pub use reply::{Code, Flags, Parser, Reply, Sink};
pub use stream::Stream;
pub use text::{Item, Stored};

/// What a client call answers.
pub type Result<T> = std::result::Result<T, Error>;
