//! The settings themselves, with the types of their values.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use larder_engine::{Durability, WhenFull};

use super::error::Origin;
use super::listen::ListenAddress;
use super::paths::{LanePaths, StorePath, lanes};
use crate::command::Switches;
use crate::net::BackendChoice;

/// Which command line was used: the flags are the same, some defaults are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flavor {
    /// `larder serve`: loopback only, with the admin page.
    #[default]
    Larder,
    /// Started through a link named `memcached`: every address, no admin page, as memcached does.
    Memcached,
}

/// The TCP port of addresses that name none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// No TCP (`-p 0`).
    Off,
    /// The kernel chooses (`-p -1`).
    Any,
    /// This one.
    Fixed(u16),
}

/// The protocol that connections speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// The first byte of a connection tells.
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
    /// What failed.
    Error,
    /// And what looks wrong.
    Warn,
    /// And what happens rarely: start, stop, reload.
    #[default]
    Info,
    /// And connections.
    Debug,
    /// And commands.
    Trace,
}

impl LogLevel {
    /// Its name in the settings.
    pub fn name(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }

    /// The level that `verbosity` more `-v` make of this one.
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

/// All settings of a server. `Settings::default()` is what `larder serve` runs with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which command line was used.
    pub flavor: Flavor,
    /// Addresses of the data port; the flavor's default when empty.
    pub listen: Vec<ListenAddress>,
    /// The TCP port of addresses that name none.
    pub port: Port,
    /// The Unix socket.
    pub socket: Option<PathBuf>,
    /// Permission bits of the Unix socket.
    pub socket_mode: u32,
    /// Clients that may wait to be accepted.
    pub listen_backlog: i32,
    /// `-C` was given: without effect, but `stats settings` shows it.
    pub disable_cas: bool,
    /// The protocol that connections speak.
    pub protocol: Protocol,
    /// The address of the admin page; `None` is off.
    pub admin: Option<SocketAddr>,
    /// Host names under which the admin page may be asked for, beside addresses and localhost.
    pub admin_hosts: Vec<String>,
    /// RAM for data, index and buffers, in bytes.
    pub memory: u64,
    /// The largest item, in bytes.
    pub max_item_size: u64,
    /// What happens to a write when there is no room.
    pub when_full: WhenFull,
    /// Where items are kept beyond memory and beyond the process.
    pub store: Vec<StorePath>,
    /// Lanes of the store whose devices are gone for good.
    pub forget: Vec<usize>,
    /// What an acknowledged write survives, if anybody said; see [`Settings::durability`].
    pub durability: Option<Durability>,
    /// With [`Durability::Async`]: how old an acknowledged write may become before it is durable.
    pub sync_interval: Duration,
    /// Start although the store is damaged, without what is lost.
    pub accept_damage: bool,
    /// The store was named by memcached's `-o ext_path`.
    pub(crate) ext_path: bool,
    /// Workers.
    pub threads: usize,
    /// Connections at a time.
    pub max_connections: usize,
    /// Connections that are silent for this long are closed.
    pub idle_timeout: Option<Duration>,
    /// The kernel interface of the event loops.
    pub io: BackendChoice,
    /// `flush_all` is allowed.
    pub flush_all: bool,
    /// Commands that list keys are allowed: `stats cachedump`, `lru_crawler metadump`.
    pub dumping: bool,
    /// Commands that change memory and devices are allowed: `cache_memlimit`, `store grow`, `store drain`.
    pub control: bool,
    /// `watch` is allowed.
    pub watch: bool,
    /// The `shutdown` command is allowed.
    pub shutdown_command: bool,
    /// `stats detail` counts from the start.
    pub detail: bool,
    /// What ends a key's prefix in `stats detail`; one ASCII character.
    pub prefix_delimiter: char,
    /// How many `-v` were given.
    pub verbosity: u32,
    /// How much is logged before `-v` is counted.
    pub log_level: LogLevel,
    /// The form of log lines.
    pub log_format: LogFormat,
    /// Where log lines go; to the standard error output if not.
    pub log_file: Option<PathBuf>,
    /// How long a graceful stop waits for commands in flight.
    pub drain_timeout: Duration,
    /// Run in the background.
    pub daemon: bool,
    /// The user to become.
    pub user: Option<String>,
    /// The file that holds the process number.
    pub pidfile: Option<PathBuf>,
    /// Let the kernel write core files.
    pub core_dumps: bool,
    /// Keep all memory out of swap.
    pub lock_memory: bool,
    /// memcached's tuning that has no meaning here, as given.
    pub extended: String,
    /// The configuration file.
    pub config: Option<PathBuf>,
    /// The file that gets the port numbers (`MEMCACHED_PORT_FILENAME`).
    pub port_file: Option<PathBuf>,
    /// What was accepted and has no effect; belongs into the log.
    pub notes: Vec<String>,
    /// Who said what, by key.
    pub origins: BTreeMap<&'static str, Origin>,
}

/// Where `larder serve` shows its admin page.
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
            memory: 64 << 20,
            max_item_size: 1 << 20,
            when_full: WhenFull::Evict,
            store: Vec::new(),
            forget: Vec::new(),
            durability: None,
            sync_interval: Duration::from_secs(1),
            accept_damage: false,
            ext_path: false,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            max_connections: 1024,
            idle_timeout: None,
            io: BackendChoice::Auto,
            flush_all: true,
            dumping: true,
            control: true,
            watch: true,
            shutdown_command: false,
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
            origins: BTreeMap::new(),
        }
    }
}

impl Settings {
    /// The defaults of a flavor.
    pub fn new(flavor: Flavor) -> Settings {
        let mut settings = Settings { flavor, ..Settings::default() };
        if flavor == Flavor::Memcached {
            settings.admin = None;
        }
        settings
    }

    /// Who gave the setting with this key of the configuration file.
    pub fn origin(&self, key: &str) -> &Origin {
        self.origins.get(key).unwrap_or(&Origin::Default)
    }

    /// Whether anybody asked for the setting with this key.
    pub fn is_asked(&self, key: &str) -> bool {
        self.origins.contains_key(key)
    }

    /// The log level with all `-v` counted.
    pub fn effective_log_level(&self) -> LogLevel {
        self.log_level.raised(self.verbosity)
    }

    /// What an acknowledged write survives.
    pub fn durability(&self) -> Durability {
        match self.durability {
            Some(durability) => durability,
            None if self.has_store() && !self.ext_path => Durability::Async,
            None => Durability::None,
        }
    }

    /// Whether items are kept beyond memory.
    pub fn has_store(&self) -> bool {
        !self.store.is_empty()
    }

    /// The lanes of the store.
    pub fn lanes(&self) -> Vec<LanePaths<'_>> {
        // Whether the devices go together was checked when they were set.
        lanes(&self.store).unwrap_or_default()
    }

    /// The devices of the store, as `--store` takes them.
    pub fn show_store(&self) -> String {
        let stores: Vec<_> = self.store.iter().map(ToString::to_string).collect();
        stores.join(",")
    }

    /// What commands may do.
    pub(crate) fn switches(&self) -> Switches {
        Switches {
            flush: self.flush_all,
            dump: self.dumping,
            shutdown: self.shutdown_command,
            control: self.control,
        }
    }

    /// The addresses of the data port, the default included; empty when there is no TCP.
    pub fn listen_addresses(&self) -> Vec<ListenAddress> {
        let asked = self.is_asked("listen") || self.is_asked("port") || !self.listen.is_empty();
        let socket_only = match self.flavor {
            Flavor::Larder => self.socket.is_some() && !asked,
            // memcached: a Unix socket turns the network off, whatever else is said.
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
            // Addresses with a port of their own stay.
            Port::Off => addresses.into_iter().filter(|a| a.port.is_some()).collect(),
            Port::Any | Port::Fixed(_) => addresses,
        }
    }

    /// The port of addresses that name none; 0 lets the kernel choose.
    pub(crate) fn default_port(&self) -> u16 {
        match self.port {
            Port::Fixed(port) => port,
            Port::Any | Port::Off => 0,
        }
    }

    /// Whether the data port takes this address. Names are not looked up.
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
