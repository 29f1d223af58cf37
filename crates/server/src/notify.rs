//! Sends messages to the service manager (sd_notify(3)), and takes over the sockets that it has
//! opened for this process (sd_listen_fds(3)). Without a service manager this module does nothing.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The first descriptor that a service manager passes to a process, by the protocol of
/// sd_listen_fds(3).
const FIRST_INHERITED: RawFd = 3;

/// The largest number of sockets that are taken over from the service manager.
const SOCKETS_MAX: u32 = 64;

/// During a start, each progress message asks the service manager to wait this long for the next
/// message.
const START_GOES_ON: Duration = Duration::from_secs(60);

/// The connection to the service manager. Without a service manager, messages are dropped.
#[derive(Debug, Default)]
pub struct Notifier {
    socket: Option<(UnixDatagram, SocketAddr)>,
}

impl Notifier {
    /// Connects to the service manager that the environment names, if there is one.
    pub fn of_process() -> Notifier {
        match std::env::var_os("NOTIFY_SOCKET") {
            Some(path) => Notifier::connect(path.as_bytes()).unwrap_or_default(),
            None => Notifier::default(),
        }
    }

    /// Connects to the abstract socket that `path` names after an `@`. Without the `@`, `path` is a
    /// path in the file system.
    fn connect(path: &[u8]) -> io::Result<Notifier> {
        use std::os::linux::net::SocketAddrExt;
        let address = match path.strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?,
        };
        Ok(Notifier { socket: Some((UnixDatagram::unbound()?, address)) })
    }

    /// Reports that the server accepts connections.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}\n"));
    }

    /// Reports the progress of a long start. The report makes the service manager wait longer.
    pub fn starting(&self, status: &str) {
        let more = START_GOES_ON.as_micros();
        self.send(&format!("EXTEND_TIMEOUT_USEC={more}\nSTATUS={status}\n"));
    }

    /// Reports the state of the server in a few words.
    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={status}\n"));
    }

    /// Reports that the server has begun to stop.
    pub fn stopping(&self, status: &str) {
        self.send(&format!("STOPPING=1\nSTATUS={status}\n"));
    }

    fn send(&self, message: &str) {
        if let Some((socket, address)) = &self.socket {
            // An unreachable service manager is no reason to stop serving.
            let _ = socket.send_to_addr(message.as_bytes(), address);
        }
    }
}

/// Takes the listening sockets that the service manager opened for this process. Removes the
/// environment variables that announce them, so that no child process takes them for its own. Marks
/// the sockets close-on-exec, so that no child process inherits them.
///
/// Must be called once, before anything else opens descriptors or starts threads.
pub fn inherited_sockets() -> Vec<OwnedFd> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    let meant_for = number("LISTEN_PID");
    let count = number("LISTEN_FDS").unwrap_or(0).min(SOCKETS_MAX) as RawFd;
    for name in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
        // SAFETY: only one thread exists, as the caller promises, so no other thread reads the
        // environment.
        unsafe { std::env::remove_var(name) };
    }
    if meant_for != Some(std::process::id()) {
        return Vec::new();
    }
    let descriptors = FIRST_INHERITED..FIRST_INHERITED + count;
    descriptors
        .filter_map(|fd| {
            // SAFETY: the call takes no pointers, and it returns an error if the descriptor is not
            // open.
            let set = unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
            // SAFETY: the descriptor is open. LISTEN_PID shows that the service manager made the
            // descriptor for this process, and nothing in this process has used it yet.
            (set == 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn the_service_manager_receives_every_status() {
        use std::os::linux::net::SocketAddrExt;
        let name = format!("larder-notify-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        let notifier = Notifier::connect(format!("@{name}").as_bytes()).unwrap();
        notifier.starting("reading");
        assert_eq!(heard(&manager), "EXTEND_TIMEOUT_USEC=60000000\nSTATUS=reading\n");
        notifier.ready("serving");
        assert_eq!(heard(&manager), "READY=1\nSTATUS=serving\n");
        notifier.status("busy");
        assert_eq!(heard(&manager), "STATUS=busy\n");
        notifier.stopping("draining");
        assert_eq!(heard(&manager), "STOPPING=1\nSTATUS=draining\n");
    }

    #[test]
    fn an_absent_service_manager_is_no_error() {
        Notifier::default().ready("serving");
        Notifier::connect(b"/does/not/exist").unwrap().ready("serving");
    }
}
