//! The connection: request bytes out, replies in.

use std::io::Write;
use std::time::Duration;

use crate::{Address, Error, ReplyReader, Result, Stream};

/// How a connection behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Limit of connecting (TCP) and of every single read and write; `None` waits forever.
    pub timeout: Option<Duration>,
}

impl Default for Options {
    /// Ten seconds.
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
    /// Connects to `host:port`, `host`, `unix:PATH` or `/PATH` with the default options.
    ///
    /// # Errors
    /// [`Error::Usage`] for an address that cannot be read, [`Error::Io`] if nobody answers there.
    pub fn connect(address: &str) -> Result<Client> {
        Client::connect_to(&address.parse()?, Options::default())
    }

    /// Connects to a parsed address.
    ///
    /// # Errors
    /// [`Error::Io`] if nobody answers there.
    pub fn connect_to(address: &Address, options: Options) -> Result<Client> {
        let stream = Stream::connect(address, options.timeout)?;
        stream
            .set_timeout(options.timeout)
            .map_err(|e| Error::io(format!("cannot set the time-out of {address}"), e))?;
        Ok(Client { replies: ReplyReader::new(stream) })
    }

    /// The socket, for callers that need its descriptor or other time-outs.
    pub fn stream(&self) -> &Stream {
        self.replies.source()
    }

    /// Sends raw bytes as they are: one request or many. The caller reads their replies through
    /// [`Client::replies`].
    ///
    /// # Errors
    /// [`Error::Io`] if the connection broke.
    pub fn send_raw(&mut self, bytes: &[u8]) -> Result<()> {
        let mut stream = self.stream();
        stream.write_all(bytes).map_err(|e| Error::io("cannot send the request", e))
    }

    /// The replies to requests sent with [`Client::send_raw`].
    pub fn replies(&mut self) -> &mut ReplyReader<Stream> {
        &mut self.replies
    }
}
