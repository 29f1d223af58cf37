//! One type for TCP and Unix sockets.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::{Address, Error, Result};

/// A connected socket. As with the sockets of the standard library, reads and writes take `&self`.
#[derive(Debug)]
pub enum Stream {
    /// A TCP connection with `TCP_NODELAY` set.
    Tcp(TcpStream),
    /// A connection to a Unix socket.
    Unix(UnixStream),
}

impl Stream {
    /// Connects, trying each address that the host name resolves to.
    ///
    /// # Errors
    /// Returns [`Error::Io`] with the error of the last address that was tried.
    pub fn connect(address: &Address, timeout: Option<Duration>) -> Result<Stream> {
        let doing = || format!("cannot connect to {address}");
        match address {
            Address::Unix(path) => {
                UnixStream::connect(path).map(Stream::Unix).map_err(|e| Error::io(doing(), e))
            }
            Address::Tcp(endpoint) => {
                connect_tcp(endpoint, timeout).map(Stream::Tcp).map_err(|e| Error::io(doing(), e))
            }
        }
    }

    /// Limits how long one read or write may block; `None` means forever.
    ///
    /// # Errors
    /// Returns `InvalidInput` for a duration of zero, and otherwise the operating system's error.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(timeout)?;
        self.set_write_timeout(timeout)
    }

    /// Limits how long one read may block; `None` means forever.
    ///
    /// # Errors
    /// Returns the errors of [`Stream::set_timeout`].
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(tcp) => tcp.set_read_timeout(timeout),
            Stream::Unix(unix) => unix.set_read_timeout(timeout),
        }
    }

    /// Limits how long one write may block; `None` means forever.
    ///
    /// # Errors
    /// Returns the errors of [`Stream::set_timeout`].
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(tcp) => tcp.set_write_timeout(timeout),
            Stream::Unix(unix) => unix.set_write_timeout(timeout),
        }
    }

    /// If `on`, reads and writes return `WouldBlock` instead of waiting. Otherwise they wait.
    ///
    /// # Errors
    /// Returns the operating system's error.
    pub fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        match self {
            Stream::Tcp(tcp) => tcp.set_nonblocking(on),
            Stream::Unix(unix) => unix.set_nonblocking(on),
        }
    }

    /// Waits until bytes have arrived, and reads them into `buffer`. Returns their number; 0 is the
    /// end of the connection.
    ///
    /// # Errors
    /// Returns the operating system's error.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(tcp) => (&mut &*tcp).read(buffer),
            Stream::Unix(unix) => (&mut &*unix).read(buffer),
        }
    }

    /// Waits until the socket takes bytes, and writes as many as it takes. Returns their number.
    ///
    /// # Errors
    /// Returns the operating system's error.
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(tcp) => (&mut &*tcp).write(bytes),
            Stream::Unix(unix) => (&mut &*unix).write(bytes),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive(buffer)
    }
}

impl Read for &Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive(buffer)
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(tcp) => tcp.as_fd(),
            Stream::Unix(unix) => unix.as_fd(),
        }
    }
}

fn connect_tcp(endpoint: &str, timeout: Option<Duration>) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in endpoint.to_socket_addrs()? {
        let attempt = match timeout {
            Some(timeout) => TcpStream::connect_timeout(&address, timeout),
            None => TcpStream::connect(address),
        };
        match attempt {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
