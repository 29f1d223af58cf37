//! Prepares the process for a server: sets limits, binds listeners, writes files, and drops rights.
//! The caller must drop rights after it has bound the listeners and written the pidfile, because
//! these steps may need the rights.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use super::error::{StartError, system};
use crate::admin;
use crate::limit_port;
use crate::net::{BindError, Endpoint, Listener};
use crate::process;
use crate::settings::{ListenAddress, Port, Settings};

/// The start fails if the limit of open files allows fewer connections than this.
const MIN_CONNECTIONS: usize = 16;

/// Sets the limits of the process as the settings require.
pub(super) fn prepare_process(settings: &mut Settings) -> Result<(), StartError> {
    if settings.core_dumps {
        process::enable_core_dumps().map_err(system("let core files be written"))?;
    }
    let reachable = reachable_connections(settings).map_err(system("read the file limit"))?;
    if reachable < settings.max_connections {
        if settings.is_given("max-connections") || reachable < MIN_CONNECTIONS {
            let error = io::Error::other(too_few_files(reachable));
            let connections = settings.max_connections;
            return Err(system(format!("keep {connections} connections"))(error));
        }
        let asked = settings.max_connections;
        let advice = "raise it: ulimit -n, LimitNOFILE=";
        warn!(
            event = "fewer_connections",
            reachable,
            asked,
            reason = "limit of open files",
            advice
        );
        settings.max_connections = reachable;
    }
    if let Some(machine) = process::machine_memory().filter(|machine| settings.memory > *machine) {
        let (memory, advice) = (settings.memory, "lower --memory, or it will be swapped or killed");
        warn!(event = "memory_exceeds_machine", memory, machine, advice);
    }
    if let Err(error) = process::take_short_turns() {
        debug!(event = "turns_unchanged", %error);
    }
    Ok(())
}

/// Raises the limit of open files, if possible at least as far as `max_connections` needs. Returns
/// how many of these connections the new limit allows.
pub(super) fn reachable_connections(settings: &Settings) -> io::Result<usize> {
    // An estimate of the number of descriptors that are not connections. 64 are for listeners, the
    // admin page, the log file and devices. Each worker has four descriptors: its epoll or io_uring
    // descriptor, its eventfd, and its read queues of the store.
    let mut beside = 64 + 4 * settings.threads as u64;
    if settings.limit_port != Port::Off {
        beside += limit_port::CONNECTIONS as u64;
    }
    let allowed = process::raise_file_limit(settings.max_connections as u64 + beside)?;
    Ok((allowed.saturating_sub(beside) as usize).min(settings.max_connections))
}

/// Returns the message that only `reachable` connections are possible.
pub(super) fn too_few_files(reachable: usize) -> String {
    format!(
        "the limit of open files is enough for {reachable} connections: raise it (ulimit -n, \
         LimitNOFILE=) or lower --max-connections"
    )
}

/// While an address is in use, the server tries to bind it again for up to this time. After a
/// process with io_uring was killed, the kernel releases the process's sockets some milliseconds
/// late. An immediate restart must not fail because of that.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause between two attempts to bind an address.
const PAUSE: Duration = Duration::from_millis(10);

/// Binds an address. Retries for up to `PATIENCE` while the address is in use.
fn take(endpoint: &Endpoint) -> Result<Listener, BindError> {
    let begun = Instant::now();
    loop {
        match Listener::reserve(endpoint) {
            Err(BindError::InUse(_)) if begun.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            taken => return taken,
        }
    }
}

/// Binds TCP addresses without listening. `port` is the port of addresses that do not name a port.
fn bind_tcp(addresses: &[ListenAddress], port: u16) -> Result<Vec<Listener>, StartError> {
    let mut listeners = Vec::new();
    for listen in addresses {
        let addresses = listen
            .resolve(port)
            .map_err(|error| StartError::Resolve { address: listen.to_string(), error })?;
        let mut failed = None;
        let before = listeners.len();
        for mut address in addresses {
            // All addresses of one host name share the port that the kernel chose for the first.
            if address.port() == 0
                && let Some(first) = listeners.get(before).and_then(Listener::address)
            {
                address.set_port(first.port());
            }
            match take(&Endpoint::Tcp(address)) {
                Ok(listener) => listeners.push(listener),
                // The host `*` stands for IPv4 and IPv6. The machine may lack one of them, so one
                // address suffices.
                Err(error) if listen.host == "*" && !matches!(error, BindError::InUse(_)) => {
                    failed = Some(error);
                }
                Err(error) => return Err(StartError::Bind(error)),
            }
        }
        if let Some(error) = failed.filter(|_| listeners.len() == before) {
            return Err(StartError::Bind(error));
        }
    }
    Ok(listeners)
}

/// Binds the addresses of the data port without listening. So the start detects an address in use
/// before a long recovery, and clients are refused until the recovery has ended.
pub(super) fn bind(settings: &Settings) -> Result<Vec<Listener>, StartError> {
    let mut listeners = bind_tcp(&settings.listen_addresses(), settings.default_port())?;
    if let Some(path) = &settings.socket {
        // The path is made absolute, because the current directory changes when the server goes to
        // the background.
        let path = std::path::absolute(path).map_err(system("find the current directory"))?;
        let endpoint = Endpoint::Unix { path, mode: settings.socket_mode };
        listeners.push(take(&endpoint).map_err(StartError::Bind)?);
    }
    for listener in &listeners {
        listener.set_backlog(settings.listen_backlog);
    }
    // Some programs wait until the socket's path exists and then connect at once. Without a store
    // there is no recovery to wait for, so the kernel can queue the connections of these programs
    // from now on.
    if let (Some(_), false, Some(socket)) =
        (&settings.socket, settings.has_store(), listeners.last())
    {
        socket.listen().map_err(StartError::Bind)?;
    }
    Ok(listeners)
}

/// Binds the addresses of the limit port without listening, if there is one.
pub(super) fn bind_limit_port(settings: &Settings) -> Result<Vec<Listener>, StartError> {
    match settings.limit_port {
        Port::Off => Ok(Vec::new()),
        Port::Any => bind_tcp(&settings.limit_addresses(), 0),
        Port::Fixed(port) => bind_tcp(&settings.limit_addresses(), port),
    }
}

/// Takes over the sockets of the service manager in place of the configured addresses.
pub(super) fn inherit(
    settings: &Settings,
    sockets: Vec<OwnedFd>,
) -> Result<Vec<Listener>, StartError> {
    let asked = ["listen", "port", "socket"];
    let ignored: Vec<_> = asked.into_iter().filter(|key| settings.is_given(key)).collect();
    if !ignored.is_empty() {
        let ignored = ignored.join(",");
        warn!(event = "sockets_of_the_service_manager", ignored);
    }
    sockets.into_iter().map(|socket| Listener::inherit(socket).map_err(StartError::Bind)).collect()
}

/// Binds the admin address. If the default address cannot be bound, the server starts without the
/// admin page. If the user gave an address that cannot be bound, the start fails.
pub(super) fn bind_admin(settings: &Settings) -> Result<Option<std::net::TcpListener>, StartError> {
    let Some(address) = settings.admin else { return Ok(None) };
    let default = Settings::default().admin == Some(address) && !settings.is_given("admin");
    match admin::bind(address) {
        Ok(listener) => {
            if !address.ip().is_loopback() {
                warn!(event = "admin_open", %address, reason = "any host that reaches it can read the page");
            }
            Ok(Some(listener))
        }
        Err(error) if default => {
            warn!(event = "admin_off", %address, %error);
            Ok(None)
        }
        Err(error) => Err(StartError::Admin { address, error }),
    }
}

/// The file with the process id. The server holds a lock on the file while it runs. So another
/// start can distinguish the file of a running server from a file that a killed server left, even
/// if the process id was reused.
#[derive(Debug)]
pub(super) struct Pidfile {
    path: PathBuf,
    /// The open file, which holds the lock. `None` if the path is a pipe or another special file.
    /// The server closes such a file at once, because a reader may wait for its end, and does not
    /// remove it.
    lock: Option<File>,
}

impl Pidfile {
    pub(super) fn write(settings: &Settings) -> Result<Option<Pidfile>, StartError> {
        let Some(path) = &settings.pidfile else { return Ok(None) };
        let path = std::path::absolute(path).map_err(system("find the current directory"))?;
        let doing = || format!("write --pidfile {}", path.display());
        let open = File::options().write(true).create(true).truncate(false).open(&path);
        let mut file = open.map_err(system(doing()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let number = std::fs::read_to_string(&path).unwrap_or_default();
                let why = format!(
                    "process {} runs and has it: stop that one, or give another --pidfile",
                    number.trim()
                );
                return Err(system(doing())(io::Error::other(why)));
            }
            Err(TryLockError::Error(error)) => return Err(system(doing())(error)),
        }
        let is_file = file.metadata().is_ok_and(|found| found.is_file());
        let cut = if is_file { file.set_len(0) } else { Ok(()) };
        let written = cut.and_then(|()| writeln!(file, "{}", std::process::id()));
        written.map_err(system(doing()))?;
        Ok(Some(Pidfile { path, lock: is_file.then_some(file) }))
    }

    pub(super) fn remove(self) {
        if self.lock.is_none() {
            return;
        }
        // The removal may fail, because the process may have changed its user. The next start then
        // overwrites the file.
        let _ = std::fs::remove_file(self.path);
    }
}

/// Writes the file with the port numbers. memcached's test harnesses wait for this file. The file
/// is written under another name and then renamed, so that a reader never sees only a part of it.
pub(super) fn write_port_file(settings: &Settings, listeners: &[Listener]) {
    let Some(path) = &settings.port_file else { return };
    let mut text = String::new();
    for address in listeners.iter().filter_map(Listener::address) {
        let family = if address.is_ipv4() { "INET" } else { "INET6" };
        text += &format!("TCP {family}: {}\n", address.port());
    }
    let mut aside = path.clone().into_os_string();
    aside.push(".lck");
    let written = std::fs::write(&aside, text).and_then(|()| std::fs::rename(&aside, path));
    if let Err(error) = written {
        warn!(event = "port_file_failed", path = %path.display(), %error);
    }
}

/// Changes to the user that the settings name, and locks memory if the settings say so.
pub(super) fn drop_rights(settings: &Settings) -> Result<(), StartError> {
    if process::is_root() {
        match &settings.user {
            Some(user) => {
                process::become_user(user).map_err(system(format!("become --user {user}")))?;
            }
            // memcached refuses to run as root without a user. Larder only warns.
            None => warn!(event = "running_as_root", advice = "give --user to drop its rights"),
        }
    } else if let Some(user) = &settings.user {
        debug!(event = "user_unchanged", user, reason = "not started as root");
    }
    if settings.lock_memory
        && let Err(error) = process::lock_memory()
    {
        warn!(event = "memory_not_locked", %error, advice = "raise the limit: ulimit -l");
    }
    Ok(())
}
