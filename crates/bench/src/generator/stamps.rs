//! Reads from a socket and asks the kernel when the bytes arrived.
//!
//! If a generator shares its processor with other programs, it reads an answer some time after the
//! answer has arrived. A latency that ends at the kernel's time stamp excludes the time from the
//! arrival to the read. Method: Kogias, Mallon, Bugnion, "Lancet: A self-correcting Latency
//! Measuring Tool", USENIX ATC 2019.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, SystemTime};

/// Size of the buffer for the one requested control message, in words of 8 bytes. A buffer of bytes
/// might lack the alignment that the kernel's headers need.
const CONTROL_WORDS: usize = 8;

/// Makes the kernel record the arrival time of bytes on the socket.
pub(super) fn enable(socket: BorrowedFd<'_>) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the option's value lives until the call returns, and its size is given.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPNS,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads at most the buffer's length. Returns the number of bytes and how long ago the last of them
/// arrived. The time is zero if the kernel has given no time stamp. 0 bytes mean that the peer has
/// closed the connection.
pub(super) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Duration)> {
    let mut control = [0u64; CONTROL_WORDS];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: the header consists of numbers and pointers, for which zeros are valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the header points to the buffer and the control words, which live until the call
    // returns.
    let read = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, 0) };
    if read < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((read as usize, stamp(&header).map_or(Duration::ZERO, age)))
}

/// Returns the arrival time of the bytes, as the time since the Unix epoch. Returns `None` if the
/// header has no control message with a time stamp.
fn stamp(header: &libc::msghdr) -> Option<Duration> {
    // SAFETY: the kernel has filled the control words that `header` points to, and has set their
    // length in `header`.
    let message = unsafe { libc::CMSG_FIRSTHDR(header).as_ref() }?;
    if (message.cmsg_level, message.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
        return None;
    }
    // SAFETY: a message of this type holds a `timespec`.
    let time = unsafe { libc::CMSG_DATA(message).cast::<libc::timespec>().read_unaligned() };
    Some(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

fn age(stamp: Duration) -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(stamp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::thread;

    #[test]
    fn tells_how_long_ago_bytes_came() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        enable(client.as_fd()).unwrap();
        let (late, mut buffer) = (Duration::from_millis(30), [0; 100]);
        let mut ages = (0..100).map(|_| {
            server.write_all(b"answer").unwrap();
            // `peek` waits until the bytes have arrived. After the sleep they are at least `late`
            // old.
            client.peek(&mut [0; 6]).unwrap();
            thread::sleep(late);
            let (read, age) = receive(client.as_fd(), &mut buffer).unwrap();
            assert_eq!(&buffer[..read], b"answer");
            age
        });
        // The kernel begins to record arrival times only a moment after `enable`.
        let age = ages.find(|age| !age.is_zero()).unwrap();
        assert!(age >= late && age < Duration::from_secs(20), "{age:?}");
        drop(ages);
        drop(server);
        assert_eq!(receive(client.as_fd(), &mut buffer).unwrap().0, 0);
    }
}
