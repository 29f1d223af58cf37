//! The state that the parts of a running server share, with the methods that query and change it.

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use larder_engine::{Engine, Health, OpenError};

use super::stopper::Stopper;
use crate::admin::AdminToken;
use crate::clients::Registry;
use crate::clock::Clock;
use crate::command::ServerContext;
use crate::latency::LatencyTotals;
use crate::net;
use crate::policies::Policies;
use crate::settings::{LogLevel, Settings};
use crate::stats::NetTotals;

/// Sets the process's log level.
pub(crate) type SetLogLevel = Box<dyn Fn(LogLevel) + Send + Sync>;

/// The state that the parts of a running server share.
pub(crate) struct Running {
    /// The settings in use. A reload replaces them.
    settings: Mutex<Arc<Settings>>,
    pub(crate) clock: Clock,
    pub(crate) engine: Arc<Engine>,
    pub(crate) net: net::Control,
    pub(crate) registry: Arc<Registry>,
    pub(crate) stopper: Stopper,
    /// The token of the admin port, if there is one. Set once.
    pub(crate) admin_token: OnceLock<Arc<AdminToken>>,
    /// Sets the process's log level. `None` in most tests, because a test must not change the log
    /// level of its process.
    pub(super) set_log_level: Option<SetLogLevel>,
    /// Number of running workers.
    pub(crate) workers: AtomicUsize,
    /// True once a stop has begun. From then on, the server accepts no new connections.
    pub(crate) draining: AtomicBool,
    /// True if the server has refused a write for lack of space in the last 5 seconds. Only the
    /// thread of `watch.rs` sets and clears this flag.
    pub(super) refusing: AtomicBool,
    /// The state that all workers share, once it exists. The reference is weak, because the context
    /// refers back to this `Running` through its hooks.
    context: OnceLock<Weak<ServerContext>>,
    /// How workers read records that are not in memory: "uring" or "threads".
    pub(crate) flash_io: OnceLock<&'static str>,
    /// The counters of event loops and commands at the last `stats reset`. The figures since that
    /// reset are the present counters minus these.
    baseline: Mutex<NetTotals>,
    /// The latencies at the last `stats reset`. The figures since that reset are the present
    /// latencies minus these.
    latency_baseline: Mutex<LatencyTotals>,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("clock", &self.clock).finish_non_exhaustive()
    }
}

impl Running {
    pub(crate) fn new(
        settings: Settings,
        clock: Clock,
        engine: Arc<Engine>,
        net: net::Control,
        stopper: Stopper,
        set_log_level: Option<SetLogLevel>,
    ) -> Running {
        Running {
            settings: Mutex::new(Arc::new(settings)),
            set_log_level,
            clock,
            engine,
            net,
            registry: Arc::default(),
            stopper,
            admin_token: OnceLock::new(),
            workers: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            refusing: AtomicBool::new(false),
            context: OnceLock::new(),
            flash_io: OnceLock::new(),
            baseline: Mutex::default(),
            latency_baseline: Mutex::default(),
        }
    }

    /// Sets the state that all workers share. Called once, as soon as that state exists.
    pub(crate) fn set_context(&self, context: &Arc<ServerContext>) {
        // `set` cannot fail, because a server creates only one context.
        let _ = self.context.set(Arc::downgrade(context));
    }

    pub(crate) fn context(&self) -> Option<Arc<ServerContext>> {
        self.context.get()?.upgrade()
    }

    /// Changes the memory limit.
    ///
    /// # Errors
    /// Returns the errors of [`Engine::set_memory_limit`].
    pub(crate) fn set_memory_limit(&self, bytes: u64) -> Result<(), OpenError> {
        match self.context() {
            Some(context) => context.set_memory_limit(bytes),
            None => self.engine.set_memory_limit(bytes),
        }
    }

    /// Returns the settings in use.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the settings, and passes new values to the parts of the server that keep copies of
    /// settings.
    pub(crate) fn set_settings(&self, settings: Settings) {
        self.net.set_limits(settings.max_connections, settings.idle_timeout);
        if let Some(context) = self.context() {
            context.set_switches(settings.switches);
            context.latencies.set_on(settings.latency);
            context.latencies.set_slow_from(settings.slow_command);
            context.hot_keys.set_on(settings.samples_keys());
            context.policies().replace(&settings.policies);
            context.policies().refused().set_on(settings.samples_keys());
        }
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// Reads the token of the admin port from the file of `settings`. Returns true if the token has
    /// changed.
    ///
    /// # Errors
    /// Returns the reason if there is no usable file. The token then stays as it was.
    pub(crate) fn read_admin_token(&self, settings: &Settings) -> Result<bool, String> {
        match (self.admin_token.get(), &settings.admin_token_file) {
            (None, _) => Ok(false),
            (Some(token), Some(file)) => token.read_again(file),
            (Some(_), None) => Err("only a start creates a token".to_owned()),
        }
    }

    /// Returns the verbosity in use, which `-v` or the last `verbosity` command has set.
    pub(crate) fn verbosity(&self) -> u32 {
        match self.context() {
            Some(context) => context.verbosity.load(Relaxed),
            None => self.settings().verbosity,
        }
    }

    /// Sets the verbosity, as the `verbosity` command does.
    pub(crate) fn set_verbosity(&self, verbosity: u32) {
        if let Some(context) = self.context() {
            context.set_verbosity(verbosity);
        }
    }

    /// Returns the log level in use: that of the settings, raised by the verbosity.
    pub(crate) fn log_level(&self) -> LogLevel {
        self.settings().log_level.raised(self.verbosity())
    }

    /// Returns the policies of rate limits.
    pub(crate) fn policies(&self) -> Arc<Policies> {
        self.context().map(|context| context.policies().table()).unwrap_or_default()
    }

    /// Returns true if `stats detail` is on.
    pub(crate) fn detail_enabled(&self) -> bool {
        self.context().is_some_and(|context| context.prefixes.is_enabled())
    }

    /// Returns the counters of event loops and commands since the last reset.
    pub(crate) fn net_totals(&self) -> NetTotals {
        let baseline = *self.baseline.lock().unwrap_or_else(PoisonError::into_inner);
        self.net_totals_ever().since(&baseline)
    }

    /// Returns the counters of event loops and commands since the start.
    pub(crate) fn net_totals_ever(&self) -> NetTotals {
        let mut totals = NetTotals::default();
        for counters in self.net.counters() {
            totals.loops.add(counters);
        }
        totals.http = self.registry.http.load(Relaxed);
        totals.commands = self.context().map(|context| context.counters()).unwrap_or_default();
        totals
    }

    /// Returns the latencies since the last reset; `None` if they are not measured.
    pub(crate) fn latencies(&self) -> Option<LatencyTotals> {
        let baseline = self.latency_baseline.lock().unwrap_or_else(PoisonError::into_inner);
        Some(self.latencies_ever()?.since(&baseline))
    }

    /// Returns the latencies since the start; `None` if they are not measured.
    pub(crate) fn latencies_ever(&self) -> Option<LatencyTotals> {
        let context = self.context()?;
        context.latencies.is_on().then(|| context.latencies.totals())
    }

    /// Returns the duration from which a command counts as slow.
    ///
    /// # Errors
    /// Returns the reason if slow commands are not recorded.
    pub(crate) fn slow_from(&self) -> Result<Duration, &'static str> {
        let context = self.context().ok_or("the server is starting")?;
        if !context.latencies.is_on() {
            return Err("latencies are not measured: start without --disable-latency");
        }
        context.latencies.slow_from().ok_or("--slow-command is 0: set it to a time, such as 10ms")
    }

    /// Checks if the server is ready for traffic.
    ///
    /// # Errors
    /// If the server is not ready, returns the reason in a few words.
    pub(crate) fn readiness(&self) -> Result<(), Cow<'static, str>> {
        if self.draining.load(Relaxed) {
            return Err("stopping: no new connections are taken".into());
        }
        if self.workers.load(Relaxed) < self.settings().threads {
            return Err("a worker has ended".into());
        }
        // If the store refuses writes, reads still work. But the server is not ready for clients
        // that write.
        match self.store_failure() {
            Some(reason) => Err(format!("the store refuses writes: {reason}").into()),
            None if self.refusing.load(Relaxed) => Err("full: writes are refused".into()),
            None => Ok(()),
        }
    }

    /// Returns the reason why the store refuses writes, if it does.
    pub(crate) fn store_failure(&self) -> Option<String> {
        match self.engine.health() {
            Health::Good => None,
            Health::Failing { reason } => Some(reason),
        }
    }

    /// Sets the counters of event loops and commands, and the latencies, to zero.
    pub(crate) fn reset(&self) {
        let now = self.net_totals_ever();
        *self.baseline.lock().unwrap_or_else(PoisonError::into_inner) = now;
        if let Some(context) = self.context() {
            *self.latency_baseline.lock().unwrap_or_else(PoisonError::into_inner) =
                context.latencies.totals();
        }
    }
}
