//! The settings and the types of their values.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use larder_engine::{Durability, LaneNumber, WhenFull};

use super::listen::ListenAddress;
use super::paths::{LanePaths, StorePath, lanes};
use crate::command::Switches;
use crate::net::BackendChoice;
use crate::policies::Policy;

/// The name under which the process was started. Both flavors have the same flags, but some
/// defaults differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flavor {
    /// `larder serve`: loopback only, with the admin page.
    #[default]
    Larder,
    /// Started through a link named `memcached`: listens on every address, without an admin page,
    /// as memcached does.
    Memcached,
}

/// The TCP port of addresses that do not name a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// No port (`-p 0`): the server does not listen on addresses that do not name a port.
    Off,
    /// The kernel chooses a port (`-p -1`).
    Any,
    /// A given port.
    Fixed(u16),
}

/// The protocol that connections speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// The first byte of a connection shows which protocol the client speaks.
    #[default]
    Auto,
    /// Text and meta commands only.
    Ascii,
    /// The binary protocol only.
    Binary,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Logs failures.
    Error,
    /// Logs suspicious events too.
    Warn,
    /// Logs rare events too: start, stop, reload.
    #[default]
    Info,
    /// Logs connections too.
    Debug,
    /// Logs commands too.
    Trace,
}

impl LogLevel {
    /// Returns this level or the level of `-v`, given `verbosity` times, whichever logs more.
    pub fn raised(self, verbosity: u32) -> LogLevel {
        match verbosity {
            0 => self,
            1 => self.max(LogLevel::Debug),
            _ => LogLevel::Trace,
        }
    }
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// `key=value` pairs.
    #[default]
    Logfmt,
    /// One JSON object per line.
    Json,
}

/// All settings of a server. `Settings::default()` has the values of `larder serve` without flags.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The name under which the process was started: Larder's or memcached's.
    pub flavor: Flavor,
    /// Addresses of the data port. If the list is empty, the flavor's default applies.
    pub listen: Vec<ListenAddress>,
    /// The TCP port of addresses that do not name a port.
    pub port: Port,
    /// The path of the Unix socket, if any.
    pub socket: Option<PathBuf>,
    /// Permission bits of the Unix socket.
    pub socket_mode: u32,
    /// The largest number of clients that wait to be accepted.
    pub listen_backlog: i32,
    /// True if `-C` was given. The flag has no effect except in `stats settings`.
    pub disable_cas: bool,
    /// The protocol that connections speak.
    pub protocol: Protocol,
    /// The address of the admin page; `None` is off.
    pub admin: Option<SocketAddr>,
    /// Host names by which clients may address the admin page and the limit port, in addition to IP
    /// addresses and localhost.
    pub admin_hosts: Vec<String>,
    /// The file with the token of the admin port. `None` if each start creates a token.
    pub admin_token_file: Option<PathBuf>,
    /// The path of a report of `larder bench all`, or of the report's directory. The admin page
    /// shows this report.
    pub lab_report: Option<PathBuf>,
    /// The port for rate limits over HTTP and gRPC. The server listens on it at the addresses of
    /// the data port, or at 127.0.0.1 if the data port has no TCP address.
    pub limit_port: Port,
    /// RAM for data, index and buffers, in bytes.
    pub memory: u64,
    /// The largest item, in bytes.
    pub max_item_size: u64,
    /// What happens to a write when there is no room: items are evicted, or the write is refused.
    pub when_full: WhenFull,
    /// The devices of the store. The store keeps items that do not fit into memory, and restores
    /// items after a restart. With the durability `none`, it does so only after a clean stop.
    pub store: Vec<StorePath>,
    /// Lanes of the store whose devices are lost. The store starts without their items.
    pub forget: Vec<LaneNumber>,
    /// What an acknowledged write survives. `None` if no flag, variable or file sets it;
    /// [`Settings::durability`] then returns the default.
    pub durability: Option<Durability>,
    /// The longest time from an acknowledgement until the write is durable, with
    /// [`Durability::Async`].
    pub sync_interval: Duration,
    /// True if the server may start with a damaged store, without the lost items.
    pub accept_damage: bool,
    /// True if the store was named by memcached's `-o ext_path`.
    pub(crate) ext_path: bool,
    /// The policies of rate limits. Names and prefixes are unique.
    pub policies: Vec<Policy>,
    /// Number of workers.
    pub threads: usize,
    /// The largest number of open connections.
    pub max_connections: usize,
    /// Time after which an idle connection is closed; `None` is never.
    pub idle_timeout: Option<Duration>,
    /// The kernel interface of the event loops.
    pub io: BackendChoice,
    /// False if `-W` was given. The flag has no effect except in `stats settings`: Larder always
    /// refuses the command `watch`.
    pub watch: bool,
    /// The commands that are allowed.
    pub switches: Switches,
    /// True if the latencies of commands are measured.
    pub latency: bool,
    /// The least duration of a slow command. `None` if slow commands are not recorded.
    pub slow_command: Option<Duration>,
    /// True if the keys of requests and items are sampled for the admin page.
    pub key_sampling: bool,
    /// True if the counts of `stats detail` are on when the server starts.
    pub detail: bool,
    /// The delimiter after a key's prefix in `stats detail`, one ASCII character.
    pub prefix_delimiter: char,
    /// Number of `-v` flags.
    pub verbosity: u32,
    /// The log level without `-v`.
    pub log_level: LogLevel,
    /// The form of log lines.
    pub log_format: LogFormat,
    /// The file for log lines; `None` is standard error.
    pub log_file: Option<PathBuf>,
    /// How long a graceful stop waits for commands in flight.
    pub drain_timeout: Duration,
    /// True to run in the background.
    pub daemon: bool,
    /// The user that a server started as root changes to.
    pub user: Option<String>,
    /// The file that holds the process id.
    pub pidfile: Option<PathBuf>,
    /// True to let the kernel write core files.
    pub core_dumps: bool,
    /// True to keep all memory out of swap.
    pub lock_memory: bool,
    /// The value of memcached's `-o`, as given.
    pub extended: String,
    /// The path of the configuration file, if any.
    pub config: Option<PathBuf>,
    /// The file to which the server writes the ports of its listeners. As in memcached, the
    /// environment variable `MEMCACHED_PORT_FILENAME` names it.
    pub port_file: Option<PathBuf>,
    /// Log messages about settings that were accepted and have no effect.
    pub notes: Vec<String>,
    /// The keys of the settings that a flag, the environment or the file gave.
    pub given: BTreeSet<&'static str>,
}

/// The default address of the admin page of `larder serve`.
const DEFAULT_ADMIN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 11212);

impl Default for Settings {
    fn default() -> Self {
        Settings {
            flavor: Flavor::Larder,
            listen: Vec::new(),
            port: Port::Fixed(11211),
            socket: None,
            socket_mode: 0o700,
            listen_backlog: 4096,
            disable_cas: false,
            protocol: Protocol::Auto,
            admin: Some(DEFAULT_ADMIN),
            admin_hosts: Vec::new(),
            admin_token_file: None,
            lab_report: None,
            limit_port: Port::Off,
            memory: 64 << 20,
            max_item_size: 1 << 20,
            when_full: WhenFull::Evict,
            store: Vec::new(),
            forget: Vec::new(),
            durability: None,
            sync_interval: Duration::from_secs(1),
            accept_damage: false,
            ext_path: false,
            policies: Vec::new(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            max_connections: 1024,
            idle_timeout: None,
            io: BackendChoice::Auto,
            switches: Switches::default(),
            watch: true,
            latency: true,
            slow_command: Some(Duration::from_millis(10)),
            key_sampling: true,
            detail: false,
            prefix_delimiter: ':',
            verbosity: 0,
            log_level: LogLevel::Info,
            log_format: LogFormat::Logfmt,
            log_file: None,
            drain_timeout: Duration::from_secs(10),
            daemon: false,
            user: None,
            pidfile: None,
            core_dumps: false,
            lock_memory: false,
            extended: String::new(),
            config: None,
            port_file: None,
            notes: Vec::new(),
            given: BTreeSet::new(),
        }
    }
}

impl Settings {
    /// Returns the defaults of a flavor.
    pub fn new(flavor: Flavor) -> Settings {
        let mut settings = Settings { flavor, ..Settings::default() };
        if flavor == Flavor::Memcached {
            settings.admin = None;
        }
        settings
    }

    /// Returns true if a flag, the environment or the file gave the setting with the name `key`.
    pub fn is_given(&self, key: &str) -> bool {
        self.given.contains(key)
    }

    /// Returns the log level, raised by the number of `-v` flags.
    pub fn effective_log_level(&self) -> LogLevel {
        self.log_level.raised(self.verbosity)
    }

    /// Returns the durability that the settings give, or else the default.
    pub fn durability(&self) -> Durability {
        match self.durability {
            Some(durability) => durability,
            None if self.has_store() && !self.ext_path => Durability::Async,
            None => Durability::None,
        }
    }

    /// Returns true if the server has a store.
    pub fn has_store(&self) -> bool {
        !self.store.is_empty()
    }

    /// Returns the lanes of the store.
    pub fn lanes(&self) -> Vec<LanePaths<'_>> {
        // An error cannot occur here, because `Settings::check` has checked the devices.
        lanes(&self.store).unwrap_or_default()
    }

    /// Returns the devices of the store in the form that `--store` accepts.
    pub fn show_store(&self) -> String {
        let stores: Vec<_> = self.store.iter().map(ToString::to_string).collect();
        stores.join(",")
    }

    /// Returns the addresses of the data port. If the settings give none, this is the flavor's
    /// default address. The list is empty if the server does not listen on TCP.
    pub fn listen_addresses(&self) -> Vec<ListenAddress> {
        let asked = self.is_given("listen") || self.is_given("port") || !self.listen.is_empty();
        let socket_only = match self.flavor {
            Flavor::Larder => self.socket.is_some() && !asked,
            // In memcached, a Unix socket turns the network off even if a port is given.
            Flavor::Memcached => self.socket.is_some(),
        };
        if socket_only {
            return Vec::new();
        }
        let addresses = if self.listen.is_empty() {
            let host = match self.flavor {
                Flavor::Larder => "127.0.0.1",
                Flavor::Memcached => "*",
            };
            vec![ListenAddress { host: host.to_owned(), port: None }]
        } else {
            self.listen.clone()
        };
        match self.port {
            // Without a default port, only addresses that name a port remain.
            Port::Off => addresses.into_iter().filter(|a| a.port.is_some()).collect(),
            Port::Any | Port::Fixed(_) => addresses,
        }
    }

    /// Returns the addresses of the limit port, without ports. These are the addresses of the data
    /// port, or the loopback address if the data port has no TCP address.
    pub(crate) fn limit_addresses(&self) -> Vec<ListenAddress> {
        let mut addresses: Vec<ListenAddress> = Vec::new();
        for ListenAddress { host, .. } in self.listen_addresses() {
            if !addresses.iter().any(|known| known.host == host) {
                addresses.push(ListenAddress { host, port: None });
            }
        }
        if addresses.is_empty() {
            addresses.push(ListenAddress { host: "127.0.0.1".to_owned(), port: None });
        }
        addresses
    }

    /// Returns the port of addresses that do not name a port. 0 lets the kernel choose.
    pub(crate) fn default_port(&self) -> u16 {
        match self.port {
            Port::Fixed(port) => port,
            Port::Any | Port::Off => 0,
        }
    }

    /// Returns true if the data port listens on `address`, or on its port at an overlapping IP
    /// address such as 0.0.0.0. Does not resolve host names, except `localhost`.
    pub(super) fn is_data_port(&self, address: SocketAddr) -> bool {
        let is_it = |listen: &ListenAddress| {
            let host = match listen.host.as_str() {
                "localhost" => Some(IpAddr::from([127, 0, 0, 1])),
                host => host.parse::<IpAddr>().ok(),
            };
            let everywhere = |ip: IpAddr| ip.is_unspecified() || address.ip().is_unspecified();
            let same = host.map_or(listen.host == "*", |ip| ip == address.ip() || everywhere(ip));
            same && address.port() != 0
                && listen.port.unwrap_or(self.default_port()) == address.port()
        };
        self.listen_addresses().iter().any(is_it)
    }
}
