//! The system calls on clients' sockets. The epoll loop receives and sends only through this
//! module. The io_uring loop also queues receives and sends in its ring. Both loops pass the bytes
//! to and from the service through the same functions of [`connection`](super::connection). So a
//! transport that changes the bytes, such as TLS, can be inserted in one place, between the socket
//! and these functions.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::Peer;

/// The result of an attempt to receive or send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// This number of bytes was moved; never 0.
    Bytes(usize),
    /// No bytes can be moved now without waiting.
    Blocked,
    /// The client will send nothing more. Only a receive returns this.
    End,
    /// The connection is broken.
    Broken,
}

/// Receives into `buffer` without waiting.
#[inline]
pub(super) fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Moved {
    // SAFETY: pointer and length are those of one mutable slice.
    let n = unsafe {
        libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT)
    };
    received(n)
}

/// Converts the result of a receive call.
#[inline]
fn received(n: isize) -> Moved {
    match n {
        0 => Moved::End,
        n if n > 0 => Moved::Bytes(n as usize),
        _ => failed(),
    }
}

/// Receives without waiting: first into `front`, which has an address and a length, then into
/// `rest`.
///
/// # Safety
/// The address in `front` must be valid for writes of that length.
pub(super) unsafe fn receive_split(
    socket: &OwnedFd,
    front: (*mut u8, usize),
    rest: &mut [u8],
) -> Moved {
    let mut parts = [
        libc::iovec { iov_base: front.0.cast(), iov_len: front.1 },
        libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() },
    ];
    // SAFETY: all fields of a `msghdr` are integers and pointers, for which zero is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len();
    // SAFETY: `message` names the two parts, which live until the call returns. The caller ensures
    // that the first is valid for writes, and the second is a mutable slice.
    let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
    received(n)
}

/// Sends as many of `bytes` as the socket takes without waiting. `bytes` must not be empty.
#[inline]
pub(super) fn send(socket: &OwnedFd, bytes: &[u8]) -> Moved {
    debug_assert!(!bytes.is_empty());
    // SAFETY: pointer and length are those of one slice.
    let n = unsafe {
        libc::send(
            socket.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    if n > 0 { Moved::Bytes(n as usize) } else { failed() }
}

#[cold]
fn failed() -> Moved {
    match io::Error::last_os_error().raw_os_error() {
        // EINTR cannot occur in a call that does not wait. If it did occur, trying again later
        // would be right too.
        Some(libc::EAGAIN | libc::EINTR) => Moved::Blocked,
        _ => Moved::Broken,
    }
}

/// Ends the output side of a connection, which tells the client that no more output follows.
pub(super) fn end_output(socket: &OwnedFd) {
    // SAFETY: takes no pointers. A failure means that the connection is already broken.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_WR) };
}

/// Ends both directions of a connection. This completes all operations in the kernel on its socket.
pub(super) fn abort(socket: &OwnedFd) {
    // SAFETY: takes no pointers. A failure means that the connection is already broken.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}

/// Makes a listener refuse all further connections.
pub(super) fn stop_listening(listener: RawFd) {
    // SAFETY: takes no pointers. On Linux this ends the listening state of TCP and Unix sockets.
    unsafe { libc::shutdown(listener, libc::SHUT_RD) };
}

/// Returns the client at the other end of a connection.
pub(super) fn peer_of(socket: &OwnedFd) -> Peer {
    // If the connection has no address, it has already ended. The first read then reports the end.
    let gone = SocketAddr::from(([0, 0, 0, 0], 0));
    let socket = socket2::SockRef::from(socket);
    let to = socket.local_addr().ok().and_then(|address| address.as_socket()).unwrap_or(gone);
    match socket.peer_addr().map(|address| address.as_socket()) {
        Ok(Some(from)) => Peer::Tcp { from, to },
        Ok(None) => Peer::Unix,
        Err(_) => Peer::Tcp { from: gone, to },
    }
}
