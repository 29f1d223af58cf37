//! The connection: lines and bodies in, request bytes out.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::time::Duration;

use crate::{Address, Error, Result, Stream};

/// The longest line that a server may send; a longer one is a broken stream.
const LINE_MAX: u64 = 64 * 1024;

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
    reader: BufReader<Owned>,
    /// The request being built; kept to reuse its memory.
    pub(crate) request: Vec<u8>,
    /// The line read last, without its line end.
    pub(crate) line: Vec<u8>,
}

/// Gives the buffered reader something that owns the socket and reads through `&Stream`.
#[derive(Debug)]
struct Owned(Stream);

impl Read for Owned {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.receive(buffer)
    }
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
        Ok(Client {
            reader: BufReader::with_capacity(32 * 1024, Owned(stream)),
            request: Vec::new(),
            line: Vec::new(),
        })
    }

    /// The socket, for callers that need its descriptor or other time-outs.
    pub fn stream(&self) -> &Stream {
        &self.reader.get_ref().0
    }

    /// Sends raw bytes as they are; what they ask for must be read by the caller too.
    ///
    /// # Errors
    /// [`Error::Io`] if the connection broke.
    pub fn send_raw(&mut self, bytes: &[u8]) -> Result<()> {
        let mut stream = self.stream();
        stream.write_all(bytes).map_err(|e| Error::io("cannot send the request", e))
    }

    /// Reads one line and returns it without its line end.
    ///
    /// # Errors
    /// [`Error::Closed`] at the end of the connection, [`Error::Protocol`] for an endless line.
    pub fn read_line(&mut self) -> Result<&[u8]> {
        self.line.clear();
        let read = (&mut self.reader)
            .take(LINE_MAX)
            .read_until(b'\n', &mut self.line)
            .map_err(|e| Error::io("cannot read the answer", e))?;
        if read == 0 {
            return Err(Error::Closed);
        }
        if self.line.pop() != Some(b'\n') {
            return match read as u64 {
                LINE_MAX => Err(Error::Protocol("a line without an end".into())),
                _ => Err(Error::Closed),
            };
        }
        if self.line.last() == Some(&b'\r') {
            self.line.pop();
        }
        Ok(&self.line)
    }

    /// Reads `length` bytes of a value and the line end behind them.
    ///
    /// # Errors
    /// [`Error::Protocol`] if no line end follows.
    pub fn read_value(&mut self, length: usize) -> Result<Vec<u8>> {
        // Grown while it arrives: a wrong length in the answer must not allocate gigabytes.
        let mut value = Vec::with_capacity(length.min(1 << 20));
        let read = (&mut self.reader)
            .take(length as u64 + 2)
            .read_to_end(&mut value)
            .map_err(|e| Error::io("cannot read a value", e))?;
        if read < length + 2 {
            return Err(Error::Closed);
        }
        if !value.ends_with(b"\r\n") {
            return Err(Error::Protocol(format!("no line end after a value of {length} bytes")));
        }
        value.truncate(length);
        Ok(value)
    }

    /// Sends what stands in `self.request`.
    pub(crate) fn send_request(&mut self) -> Result<()> {
        let request = std::mem::take(&mut self.request);
        let sent = self.send_raw(&request);
        self.request = request;
        sent
    }

    /// Reads the first line of an answer, turning the three error answers into errors.
    pub(crate) fn read_answer(&mut self) -> Result<&[u8]> {
        self.read_line()?;
        match error_of(&self.line) {
            Some(error) => Err(error),
            None => Ok(&self.line),
        }
    }
}

/// The error that an answer line stands for, if it is one.
pub(crate) fn error_of(line: &[u8]) -> Option<Error> {
    let text = |from: usize| {
        String::from_utf8_lossy(line.get(from..).unwrap_or_default()).trim().to_owned()
    };
    if line == b"ERROR" {
        Some(Error::UnknownCommand)
    } else if line.starts_with(b"SERVER_ERROR") {
        Some(Error::Server(text(12)))
    } else if line.starts_with(b"CLIENT_ERROR") {
        Some(Error::Client(text(12)))
    } else if line.starts_with(b"ERROR ") {
        Some(Error::Server(text(6)))
    } else {
        None
    }
}

/// Refuses keys that would break the request line, before they are sent.
pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    let reason = match key {
        [] => "is empty",
        key if key.len() > 250 => "is longer than 250 bytes",
        key if key.iter().any(|&b| b <= b' ' || b == 0x7f) => "holds a space or a control byte",
        _ => return Ok(()),
    };
    Err(Error::Usage(format!("the key {:?} {reason}", String::from_utf8_lossy(key))))
}
