//! Sockets to which clients connect. Listeners are bound before any worker starts. So an address
//! that is already in use ends the start with a message and an exit code.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// The default of the largest number of connections that wait to be accepted. The kernel lowers
/// this number to its own limit.
const BACKLOG: i32 = 4096;

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A TCP address. With port 0, the kernel chooses a port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix {
        /// The socket's file.
        path: PathBuf,
        /// Permission bits of the file, as in chmod.
        mode: u32,
    },
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(address) => address.fmt(f),
            Endpoint::Unix { path, .. } => path.display().fmt(f),
        }
    }
}

/// The reason why a listener could not be created. The message tells the operator what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum BindError {
    /// Another process listens at this address.
    InUse(Endpoint),
    /// The process has no permission to listen at this address.
    PermissionDenied(Endpoint),
    /// The address does not belong to this machine.
    NoSuchAddress(Endpoint),
    /// The directory of the path does not exist.
    NoDirectory(PathBuf),
    /// The path exists and is not a socket.
    NotASocket(PathBuf),
    /// A descriptor from the service manager is not a listening socket.
    NotListening(RawFd),
    /// Any other error.
    Other(Endpoint, io::Error),
}

impl BindError {
    fn new(endpoint: &Endpoint, error: io::Error) -> Self {
        match (error.kind(), endpoint.clone()) {
            (io::ErrorKind::AddrInUse, at) => BindError::InUse(at),
            (io::ErrorKind::PermissionDenied, at) => BindError::PermissionDenied(at),
            (io::ErrorKind::AddrNotAvailable, at) => BindError::NoSuchAddress(at),
            (io::ErrorKind::NotFound, Endpoint::Unix { path, .. }) => BindError::NoDirectory(path),
            (_, at) => BindError::Other(at, error),
        }
    }
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindError::InUse(at @ Endpoint::Tcp(_)) => {
                write!(f, "{at} is taken by another process: stop it or choose another port")
            }
            BindError::InUse(at) => {
                write!(f, "another process listens on {at}: stop it or choose another path")
            }
            BindError::PermissionDenied(at @ Endpoint::Tcp(_)) => write!(
                f,
                "no permission to listen on {at}: choose a port above 1023 or grant \
                 CAP_NET_BIND_SERVICE"
            ),
            BindError::PermissionDenied(at) => {
                write!(f, "no permission to create {at}: its directory must be writable")
            }
            BindError::NoSuchAddress(at) => {
                write!(f, "{at} is not an address of this machine: see `ip address`")
            }
            BindError::NoDirectory(path) => write!(
                f,
                "cannot create {}: there is no such directory; create it or choose another path",
                path.display()
            ),
            BindError::NotASocket(path) => {
                write!(f, "{} exists and is not a socket: choose another path", path.display())
            }
            BindError::NotListening(fd) => write!(
                f,
                "descriptor {fd} of the service manager is not a listening stream socket: use \
                 ListenStream= and Accept=no in the socket unit"
            ),
            BindError::Other(at, error) => write!(f, "cannot listen on {at}: {error}"),
        }
    }
}

impl std::error::Error for BindError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BindError::Other(_, error) => Some(error),
            _ => None,
        }
    }
}

/// A bound socket for new connections. The workers share the listeners of the cache protocol. When
/// the last clone is dropped, this process's descriptor is closed, but not its duplicates.
#[derive(Clone, Debug)]
pub struct Listener {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    socket: Socket,
    /// The address as bound. A port chosen by the kernel replaces port 0.
    endpoint: Endpoint,
    /// Device and inode of a Unix socket's file. Dropping the listener removes the file at its path
    /// only if it is still this file, and not one that another process has put there.
    file: Option<(u64, u64)>,
    /// True if another process also holds the socket and keeps it listening when this process ends.
    inherited: bool,
    /// The largest number of clients that wait to be accepted.
    backlog: AtomicI32,
}

impl Listener {
    /// Binds the address and listens.
    ///
    /// If the file of a Unix socket exists but no process listens on it, replaces the file.
    ///
    /// # Errors
    /// Returns a [`BindError`] that names the reason.
    pub fn bind(endpoint: &Endpoint) -> Result<Listener, BindError> {
        let listener = Self::reserve(endpoint)?;
        listener.listen()?;
        Ok(listener)
    }

    /// Binds the address without listening. Clients are refused until [`listen`](Self::listen) is
    /// called.
    ///
    /// # Errors
    /// Returns a [`BindError`] that names the reason.
    pub fn reserve(endpoint: &Endpoint) -> Result<Listener, BindError> {
        let bound = match endpoint {
            Endpoint::Tcp(address) => Self::bind_tcp(*address),
            Endpoint::Unix { path, mode } => {
                remove_stale(path, endpoint)?;
                Self::bind_unix(path, *mode)
            }
        };
        let inner = bound.map_err(|error| BindError::new(endpoint, error))?;
        Ok(Listener { inner: Arc::new(inner) })
    }

    fn bind_tcp(address: SocketAddr) -> io::Result<Inner> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        if address.is_ipv6() {
            // Without this option, the socket would also take the port for IPv4, and the settings
            // may list an IPv4 address with the same port.
            socket.set_only_v6(true)?;
        }
        socket.set_reuse_address(true)?;
        // Accepted sockets inherit `TCP_NODELAY` and keep-alive from the listener. This saves two
        // system calls per connection.
        socket.set_tcp_nodelay(true)?;
        socket.set_keepalive(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        let bound = socket.local_addr()?.as_socket().unwrap_or(address);
        Ok(Inner {
            socket,
            endpoint: Endpoint::Tcp(bound),
            file: None,
            inherited: false,
            backlog: AtomicI32::new(BACKLOG),
        })
    }

    fn bind_unix(path: &Path, mode: u32) -> io::Result<Inner> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.bind(&SockAddr::unix(path)?)?;
        // The mode is set before listening, so that no client can connect while the file is too
        // permissive.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        let file = std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
        let endpoint = Endpoint::Unix { path: path.to_owned(), mode };
        Ok(Inner { socket, endpoint, file, inherited: false, backlog: AtomicI32::new(BACKLOG) })
    }

    /// Takes over a listening socket from the service manager. The socket keeps listening when this
    /// process ends, and clients then wait in its queue for the next process.
    ///
    /// # Errors
    /// Returns an error if the descriptor is not a listening stream socket.
    pub fn inherit(socket: OwnedFd) -> Result<Listener, BindError> {
        let socket = Socket::from(socket);
        let wrong = BindError::NotListening(socket.as_raw_fd());
        let listens =
            matches!(socket.r#type(), Ok(Type::STREAM)) && matches!(socket.is_listener(), Ok(true));
        let Some(address) = socket.local_addr().ok().filter(|_| listens) else { return Err(wrong) };
        let endpoint = if let Some(address) = address.as_socket() {
            // Accepted sockets inherit `TCP_NODELAY` and keep-alive. The server also works without
            // them, so a failure is ignored.
            let _ = socket.set_tcp_nodelay(true).and_then(|()| socket.set_keepalive(true));
            Endpoint::Tcp(address)
        } else if let Some(path) = address.as_pathname() {
            Endpoint::Unix { path: path.to_owned(), mode: 0 }
        } else if let Some(name) = address.as_abstract_namespace() {
            let name = format!("@{}", String::from_utf8_lossy(name));
            Endpoint::Unix { path: name.into(), mode: 0 }
        } else {
            return Err(wrong);
        };
        Ok(Listener {
            inner: Arc::new(Inner {
                socket,
                endpoint,
                file: None,
                inherited: true,
                backlog: AtomicI32::new(BACKLOG),
            }),
        })
    }

    /// Starts to listen, so that clients can connect. An inherited socket already listens.
    ///
    /// # Errors
    /// Returns an error if another process has begun to listen at the address.
    pub fn listen(&self) -> Result<(), BindError> {
        if self.inner.inherited {
            return Ok(());
        }
        self.inner
            .socket
            .listen(self.inner.backlog.load(Relaxed))
            .map_err(|e| BindError::new(&self.inner.endpoint, e))
    }

    /// Sets the largest number of clients that wait to be accepted. The number takes effect with
    /// the next [`listen`](Self::listen).
    pub fn set_backlog(&self, clients: i32) {
        self.inner.backlog.store(clients, Relaxed);
    }

    /// Returns true if the socket keeps listening when this process ends.
    pub fn is_inherited(&self) -> bool {
        self.inner.inherited
    }

    /// Returns the listener's address. A port chosen by the kernel replaces port 0.
    pub fn endpoint(&self) -> &Endpoint {
        &self.inner.endpoint
    }

    /// Returns the TCP address; `None` for a Unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match self.inner.endpoint {
            Endpoint::Tcp(address) => Some(address),
            Endpoint::Unix { .. } => None,
        }
    }

    /// Returns a duplicate of the socket for the limit port, which does not use the event loops.
    /// Makes the listener and its duplicate non-blocking.
    pub(crate) fn to_std(&self) -> io::Result<std::net::TcpListener> {
        self.set_nonblocking(true)?;
        Ok(self.inner.socket.try_clone()?.into())
    }

    pub(super) fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.inner.socket.set_nonblocking(nonblocking)
    }

    pub(super) fn fd(&self) -> RawFd {
        self.inner.socket.as_raw_fd()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Endpoint::Unix { path, .. } = &self.endpoint else { return };
        let now = std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
        if now.is_some() && now == self.file {
            // If the removal fails, the next start finds a file on which no process listens, and
            // replaces it.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Removes the file of a Unix socket if no process listens on it.
fn remove_stale(path: &Path, endpoint: &Endpoint) -> Result<(), BindError> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(BindError::new(endpoint, error)),
        Ok(meta) if !meta.file_type().is_socket() => {
            return Err(BindError::NotASocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|error| BindError::new(endpoint, error))
        }
        // A process may listen on this file, but this process has no permission to find out.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(BindError::PermissionDenied(endpoint.clone()))
        }
        _ => Err(BindError::InUse(endpoint.clone())),
    }
}
