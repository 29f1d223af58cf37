//! What `stats`, the metrics and the status page show. Everything is read from counters that the
//! workers write without looking at the reader, so no lock of the data path is held. Names and
//! order of the rows are memcached's, because exporters and clients read them; rows of mechanisms
//! that do not exist here stay, with 0. Larder's own rows begin with `larder_`.

mod general;
mod groups;
mod settings;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use larder_engine::{Engine, OpenError};

use crate::clock::Clock;
use crate::command::{CounterTotals, Hooks, ServerContext};
use crate::guard::Registry;
use crate::net;
use crate::server::{SetLogLevel, Stopper, store};
use crate::settings::{LogLevel, Settings};

/// Takes rows: name and value.
pub type Row<'a> = dyn FnMut(&str, fmt::Arguments<'_>) + 'a;

/// Everything that statistics are read from.
pub struct Source {
    /// In use; a reload puts others here.
    settings: Mutex<Arc<Settings>>,
    pub(crate) clock: Clock,
    pub(crate) engine: Arc<Engine>,
    pub(crate) net: net::Control,
    pub(crate) registry: Arc<Registry>,
    pub(crate) stopper: Stopper,
    /// Sets how much the process logs.
    set_log_level: Option<SetLogLevel>,
    /// Workers that run.
    pub(crate) workers: AtomicUsize,
    /// No new connections are taken.
    pub(crate) draining: AtomicBool,
    /// Writes were refused in the last seconds, for want of room.
    refusing: AtomicBool,
    /// Set when the context exists, which holds this as its hooks.
    context: OnceLock<Weak<ServerContext>>,
    /// How records that are not in memory are read.
    pub(crate) flash_io: OnceLock<&'static str>,
    /// What had been counted at the last reset.
    baseline: Mutex<NetTotals>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("clock", &self.clock).finish_non_exhaustive()
    }
}

/// The event loops' counters of all workers together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NetTotals {
    pub(crate) current: u64,
    pub(crate) total: u64,
    pub(crate) rejected: u64,
    pub(crate) idle_closed: u64,
    pub(crate) refused_buffers: u64,
    pub(crate) accept_errors: u64,
    /// Connections that spoke HTTP.
    pub(crate) http: u64,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) yields: u64,
    pub(crate) stalls: u64,
    pub(crate) turns: u64,
    pub(crate) buffer_bytes: u64,
    commands: CounterTotals,
}

impl NetTotals {
    /// Meta commands.
    pub(crate) fn meta(&self) -> u64 {
        self.commands.meta_commands
    }

    /// Connections that ended because a value went while it was being sent.
    pub(crate) fn values_cut(&self) -> u64 {
        self.commands.values_cut
    }

    /// What was counted after `earlier`; what is open now stays.
    fn since(mut self, earlier: &NetTotals) -> NetTotals {
        let pairs = [
            (&mut self.total, earlier.total),
            (&mut self.rejected, earlier.rejected),
            (&mut self.idle_closed, earlier.idle_closed),
            (&mut self.refused_buffers, earlier.refused_buffers),
            (&mut self.accept_errors, earlier.accept_errors),
            (&mut self.http, earlier.http),
            (&mut self.bytes_read, earlier.bytes_read),
            (&mut self.bytes_written, earlier.bytes_written),
            (&mut self.reads, earlier.reads),
            (&mut self.writes, earlier.writes),
            (&mut self.yields, earlier.yields),
            (&mut self.stalls, earlier.stalls),
            (&mut self.turns, earlier.turns),
            (&mut self.commands.meta_commands, earlier.commands.meta_commands),
            (&mut self.commands.values_cut, earlier.commands.values_cut),
        ];
        for (now, before) in pairs {
            *now = now.wrapping_sub(before);
        }
        self
    }
}

impl Source {
    pub(crate) fn new(
        settings: Settings,
        clock: Clock,
        engine: Arc<Engine>,
        net: net::Control,
        stopper: Stopper,
        set_log_level: Option<SetLogLevel>,
    ) -> Source {
        Source {
            settings: Mutex::new(Arc::new(settings)),
            set_log_level,
            clock,
            engine,
            net,
            registry: Arc::default(),
            stopper,
            workers: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            refusing: AtomicBool::new(false),
            context: OnceLock::new(),
            flash_io: OnceLock::new(),
            baseline: Mutex::default(),
        }
    }

    /// The commands' context, once it exists.
    pub(crate) fn set_context(&self, context: &Arc<ServerContext>) {
        // A second context would be a second server.
        let _ = self.context.set(Arc::downgrade(context));
    }

    pub(crate) fn context(&self) -> Option<Arc<ServerContext>> {
        self.context.get()?.upgrade()
    }

    /// Changes the memory limit.
    ///
    /// # Errors
    /// As for [`Engine::set_memory_limit`].
    pub(crate) fn set_memory_limit(&self, bytes: u64) -> Result<(), OpenError> {
        match self.context() {
            Some(context) => context.set_memory_limit(bytes),
            None => self.engine.set_memory_limit(bytes),
        }
    }

    /// The settings in use.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts others in their place.
    pub(crate) fn set_settings(&self, settings: Settings) {
        self.net.set_limits(settings.max_connections, settings.idle_timeout);
        if let Some(context) = self.context() {
            context.set_switches(settings.switches());
        }
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// The verbosity that the `verbosity` command or `-v` has set.
    pub(crate) fn verbosity(&self) -> u32 {
        match self.context() {
            Some(context) => context.verbosity.load(Relaxed),
            None => self.settings().verbosity,
        }
    }

    /// Sets it, as the `verbosity` command does.
    pub(crate) fn set_verbosity(&self, verbosity: u32) {
        if let Some(context) = self.context() {
            context.set_verbosity(verbosity);
        }
    }

    /// How much is logged now.
    pub(crate) fn log_level(&self) -> LogLevel {
        self.settings().log_level.raised(self.verbosity())
    }

    /// Whether `stats detail` counts.
    pub(crate) fn detail_enabled(&self) -> bool {
        self.context().is_some_and(|context| context.detail_enabled())
    }

    /// What the event loops have counted since the last reset.
    pub(crate) fn net_totals(&self) -> NetTotals {
        let baseline = *self.baseline.lock().unwrap_or_else(PoisonError::into_inner);
        self.net_totals_ever().since(&baseline)
    }

    /// What the event loops have counted since the start.
    pub(crate) fn net_totals_ever(&self) -> NetTotals {
        let mut totals = NetTotals::default();
        for counters in self.net.counters() {
            totals.current += counters.current_connections.get();
            totals.total += counters.total_connections.get();
            totals.rejected += counters.rejected_connections.get();
            totals.idle_closed += counters.idle_closed.get();
            totals.refused_buffers += counters.refused_buffers.get();
            totals.accept_errors += counters.accept_errors.get();
            totals.bytes_read += counters.bytes_read.get();
            totals.bytes_written += counters.bytes_written.get();
            totals.reads += counters.reads.get();
            totals.writes += counters.writes.get();
            totals.yields += counters.yields.get();
            totals.stalls += counters.output_stalls.get();
            totals.turns += counters.turns.get();
            totals.buffer_bytes += counters.buffer_bytes.get();
        }
        totals.http = self.registry.http();
        totals.commands = self.context().map(|context| context.counters()).unwrap_or_default();
        totals
    }

    /// Whether the server is fit for traffic: `Err` says why not.
    ///
    /// # Errors
    /// The reason, in a few words.
    pub(crate) fn readiness(&self) -> Result<(), Cow<'static, str>> {
        if self.draining.load(Relaxed) {
            return Err("stopping: no new connections are taken".into());
        }
        if self.workers.load(Relaxed) < self.settings().threads {
            return Err("a worker has ended".into());
        }
        // Reads go on, but who sends writes should know.
        match store::failure(&self.engine) {
            Some(reason) => Err(format!("the store refuses writes: {reason}").into()),
            None if self.refusing.load(Relaxed) => Err("full: writes are refused".into()),
            None => Ok(()),
        }
    }

    /// Notes whether writes are refused for want of room.
    pub(crate) fn note_refusing(&self, refusing: bool) {
        self.refusing.store(refusing, Relaxed);
    }

    /// Calls `row` for every row of a group; the empty name is the general group. False, without
    /// any row, for a group that does not exist.
    pub fn group(&self, group: &[u8], row: &mut Row<'_>) -> bool {
        match group {
            b"" => general::rows(self, row),
            b"settings" => settings::rows(self, row),
            b"items" => groups::items(self, row),
            b"slabs" => groups::slabs(self, row),
            b"sizes" => row("sizes_status", format_args!("disabled")),
            b"conns" => groups::connections(self, row),
            // There is no flash tier; memcached without one answers an empty list.
            b"extstore" => {}
            _ => return false,
        }
        true
    }

    /// Sets the counters of the event loops to zero.
    pub fn reset(&self) {
        let now = self.net_totals_ever();
        *self.baseline.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }
}

/// A row whose value is anything printable.
fn put(row: &mut Row<'_>, name: &str, value: impl Display) {
    row(name, format_args!("{value}"));
}

/// The statistics as the commands reach them.
pub(crate) struct ServerHooks(pub(crate) Arc<Source>);

impl Hooks for ServerHooks {
    fn stats(&self, group: &[u8], row: &mut dyn FnMut(&str, fmt::Arguments<'_>)) -> bool {
        self.0.group(group, row)
    }

    fn reset_stats(&self) {
        self.0.reset();
    }

    fn shutdown(&self, _graceful: bool) {
        // Nothing is lost by waiting for commands in flight, so both forms do.
        self.0.stopper.stop("the shutdown command");
    }

    fn set_verbosity(&self, level: u32) {
        if let Some(set_log_level) = &self.0.set_log_level {
            set_log_level(self.0.settings().log_level.raised(level));
        }
    }
}
