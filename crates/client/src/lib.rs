//! A small blocking memcached client: text and meta commands over TCP and Unix sockets.
//!
//! The benchmarks, `larder top`, `larder ctl` and the tests use this client for every
//! memcached-compatible server. So all these servers get the same bytes, and no library of another
//! project hides parts of a reply. A [`Client`] is one connection. Its methods send one request at
//! a time. For a command without a method, or to pipeline requests, the caller sends bytes and
//! reads each [`Reply`]. There is no pooling, no retry and no key distribution.
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

/// The result of a client call.
pub type Result<T> = std::result::Result<T, Error>;
