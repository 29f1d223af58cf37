//! A connection to a server: sends requests and gives access to the replies.

use std::io::Write;
use std::time::Duration;

use crate::{Address, Error, ReplyReader, Result, Stream};

/// The options of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The longest time for each attempt to connect (TCP only), and for each read and write. `None`
    /// waits forever.
    pub timeout: Option<Duration>,
}

impl Default for Options {
    /// Returns options with a time-out of ten seconds.
    fn default() -> Self {
        Options { timeout: Some(Duration::from_secs(10)) }
    }
}

/// One connection to one server.
#[derive(Debug)]
pub struct Client {
    pub(crate) replies: ReplyReader<Stream>,
}

impl Client {
    /// Parses `address` as an [`Address`], and connects to it with the default options.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] for a malformed address, and [`Error::Io`] if the connection cannot
    /// be made.
    pub fn connect(address: &str) -> Result<Client> {
        Client::connect_to(&address.parse()?, Options::default())
    }

    /// Connects to a parsed address.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the connection cannot be made.
    pub fn connect_to(address: &Address, options: Options) -> Result<Client> {
        let stream = Stream::connect(address, options.timeout)?;
        stream
            .set_timeout(options.timeout)
            .map_err(|e| Error::io(format!("cannot set the time-out of {address}"), e))?;
        Ok(Client { replies: ReplyReader::new(stream) })
    }

    /// Returns the socket, for callers that need its descriptor or other time-outs.
    pub fn stream(&self) -> &Stream {
        self.replies.source()
    }

    /// Sends bytes unchanged: one request or many. The caller reads their replies through
    /// [`Client::replies`].
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the connection broke.
    pub fn send_raw(&mut self, bytes: &[u8]) -> Result<()> {
        let mut stream = self.stream();
        stream.write_all(bytes).map_err(|e| Error::io("cannot send the request", e))
    }

    /// Returns the reader of the replies to requests sent with [`Client::send_raw`].
    pub fn replies(&mut self) -> &mut ReplyReader<Stream> {
        &mut self.replies
    }
}
