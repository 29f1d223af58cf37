//! A running server: the engine, the listeners, the workers and the admin page, built from
//! [`Settings`]. A server has no global state and never ends the process, so a test can run several
//! servers at once.
//!
//! Invariant: every failure that prevents a start is an error of [`Server::start`]. No client is
//! served before the listeners are bound and the store is recovered.

mod devices;
mod error;
mod hooks;
mod prepare;
mod reload;
mod running;
mod stopper;
mod store;
mod watch;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use larder_engine::{Engine, MAX_LANES};
use tracing::{debug, error, info, warn};

use crate::admin::{Admin, AdminToken};
use crate::clock::{Clock, random_seed};
use crate::command::{PrefixStats, ServerContext};
use crate::connection;
use crate::guard::Guard;
use crate::keys::{HotKeys, ItemSampling, ItemSamplingThread, Prefixes};
use crate::limit_port::LimitPort;
use crate::net::{self, Listener};
use crate::settings::{LogLevel, MEMCACHED_VERSION, Settings, durability_name, when_full_name};
use error::system;
use hooks::ServerHooks;
use prepare::{
    Pidfile, bind, bind_admin, bind_limit_port, drop_rights, inherit, prepare_process,
    write_port_file,
};

pub use error::StartError;
pub use reload::{Listed, Reloaded, Reloader};
pub(crate) use running::Running;
use running::SetLogLevel;
pub use stopper::Stopper;
pub use store::Tell;

/// Returns the number of lanes of a server without a store: one per four workers, because one
/// cleaner keeps up with four workers. With little memory there are fewer lanes.
fn lanes_in_memory(settings: &Settings) -> usize {
    /// Number of worker threads per lane, and so per cleaner.
    const THREADS: usize = 4;
    /// The smallest memory of a lane, in bytes, if there are several lanes.
    const MEMORY: u64 = 1 << 30;
    /// If there are several lanes, each has memory for at least this many items of the largest
    /// size, because a lane cannot use the memory of other lanes.
    const LARGEST_ITEMS: u64 = 64;
    let lane = MEMORY.max(settings.max_item_size.saturating_mul(LARGEST_ITEMS));
    let at_most = usize::try_from(settings.memory / lane).unwrap_or(usize::MAX);
    settings.threads.div_ceil(THREADS).min(at_most).clamp(1, MAX_LANES)
}

/// The reason why a server ended without being asked to, or did not end cleanly.
#[derive(Debug)]
pub struct Failure(String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

/// The resources that the process provides to a server. The server of a test needs none.
#[derive(Default)]
pub struct Host {
    /// Listening sockets that a service manager has opened. These sockets replace the addresses of
    /// the settings.
    pub sockets: Vec<OwnedFd>,
    /// Sets the process's log level. Called for the `verbosity` command and by a reload.
    pub set_log_level: Option<Box<dyn Fn(LogLevel) + Send + Sync>>,
    /// Called at intervals during a long start, with the progress of the start. From these calls,
    /// the process can also see that the start has not stalled.
    pub starting: Option<Tell>,
    /// Called once, after recovery and before the first client is served. Until this call, the
    /// process may simply exit. After it, an exit may lose acknowledged writes, unless
    /// [`Stopper::stop`] ends the server first.
    pub serving: Option<Box<dyn FnOnce() + Send>>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("sockets", &self.sockets).finish_non_exhaustive()
    }
}

/// Reports the end of a worker's thread when dropped. If the thread ended with an error or a panic,
/// requests a stop of the server.
struct WorkerEnd {
    running: Arc<Running>,
    index: usize,
    result: io::Result<()>,
}

impl Drop for WorkerEnd {
    fn drop(&mut self) {
        self.running.workers.fetch_sub(1, Relaxed);
        let index = self.index;
        if std::thread::panicking() {
            self.running.stopper.fail(format!("worker {index} has panicked"));
        } else if let Err(error) = &self.result {
            self.running.stopper.fail(format!("worker {index} cannot go on: {error}"));
        }
    }
}

/// A running server. Dropping it stops the server without waiting for commands in flight.
#[derive(Debug)]
pub struct Server {
    pub(crate) running: Arc<Running>,
    workers: Vec<JoinHandle<()>>,
    pub(crate) admin: Option<Admin>,
    limit_port: Option<LimitPort>,
    watch: Option<watch::Watch>,
    sampling: Option<ItemSamplingThread>,
    pidfile: Option<Pidfile>,
}

impl Server {
    /// Starts a server in this process. The server serves clients when this function returns.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(settings: Settings) -> Result<Server, StartError> {
        Self::start_in(settings, Host::default())
    }

    /// Does the same as [`start`](Self::start), with the resources that the process provides in
    /// `host`.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_in(mut settings: Settings, host: Host) -> Result<Server, StartError> {
        for note in &settings.notes {
            warn!(event = "setting_ignored", note);
        }
        prepare_process(&mut settings)?;
        let listeners = if host.sockets.is_empty() {
            bind(&settings)?
        } else {
            inherit(&settings, host.sockets)?
        };
        let admin = bind_admin(&settings)?;
        let limit_listeners = bind_limit_port(&settings)?;
        let clock = Clock::start();
        let store = store::open(&settings, &clock)?;
        let pidfile = Pidfile::write(&settings)?;
        drop_rights(&settings)?;
        let admin = admin.map(|listener| start_admin(listener, &settings)).transpose()?;
        let options = larder_engine::Options {
            memory: settings.memory,
            max_item_size: settings.max_item_size,
            when_full: settings.when_full,
            hash_seed: random_seed(),
            lanes: lanes_in_memory(&settings),
            store,
        };
        let state = admin.as_ref().map(|admin| &*admin.state);
        let mut teller =
            options.store.is_some().then(|| store::RecoveryReporter::new(state, host.starting));
        let mut progress = |progress| teller.iter_mut().for_each(|teller| teller.hear(progress));
        let engine = Engine::open_with_progress(options, &mut progress)
            .map_err(|error| store::explain(error, &settings))?;
        store::report(&engine, &settings);
        let clock = store::set_clock(clock, &engine);
        crate::process::give_back_code();
        if let Some(serving) = host.serving {
            serving();
        }
        let listeners = [listeners, limit_listeners];
        let run =
            Self::run(settings, clock, Arc::clone(&engine), listeners, admin, host.set_log_level);
        match run {
            Ok(mut server) => {
                server.pidfile = pidfile;
                server.announce();
                Ok(server)
            }
            Err(error) => {
                // The start has failed after it had recovered the store, for example because it
                // could not listen. Closing the store cleanly keeps the recovered state.
                store::close(&engine)?;
                Err(error)
            }
        }
    }

    /// Does the part of a start that follows recovery: listens to the addresses and starts the
    /// threads.
    fn run(
        settings: Settings,
        clock: Clock,
        engine: Arc<Engine>,
        [listeners, limit_listeners]: [Vec<Listener>; 2],
        admin: Option<Admin>,
        set_log_level: Option<SetLogLevel>,
    ) -> Result<Server, StartError> {
        for listener in listeners.iter().chain(&limit_listeners) {
            listener.listen().map_err(StartError::Bind)?;
        }
        write_port_file(&settings, &listeners);
        let options = net::Options {
            backend: settings.io,
            listeners,
            max_connections: settings.max_connections,
            idle_timeout: settings.idle_timeout,
            budget: engine.clone(),
            ..net::Options::default()
        };
        let (control, loops) =
            net::open(options, settings.threads).map_err(system("open the event loops"))?;
        let stopper = Stopper::default();
        stopper.state().control = Some(control.clone());
        let running = Running::new(settings, clock, engine, control, stopper, set_log_level);
        let running = Arc::new(running);
        let context = context(&running);
        running.set_context(&context);
        let (workers, limit_port, watch, pidfile) = (Vec::new(), None, None, None);
        let mut server =
            Server { running, workers, admin, limit_port, watch, sampling: None, pidfile };
        for worker in loops {
            let thread = server.spawn_worker(worker, &context)?;
            server.workers.push(thread);
        }
        if !limit_listeners.is_empty() {
            let policies = context.policies().reader();
            let port = LimitPort::start(&server.running, policies, &limit_listeners);
            server.limit_port = Some(port.map_err(system("start the limit port"))?);
        }
        let watch = watch::Watch::start(Arc::clone(&server.running));
        server.watch = Some(watch.map_err(system("start the watch"))?);
        if let Some(admin) = &server.admin {
            // `set` cannot fail, because a server has only one admin page.
            let _ = server.running.admin_token.set(Arc::clone(&admin.state.token));
            let (sampling, running) = (Arc::clone(&context.sampling), &server.running);
            let sampling =
                ItemSamplingThread::start(sampling, Arc::clone(&running.engine), running.clock);
            server.sampling =
                Some(sampling.map_err(system("start the thread that samples items"))?);
            admin.state.serves(Arc::clone(&server.running));
        }
        Ok(server)
    }

    fn spawn_worker(
        &self,
        worker: net::EventLoop,
        context: &Arc<ServerContext>,
    ) -> Result<JoinHandle<()>, StartError> {
        let running = Arc::clone(&self.running);
        let mut session = running.engine.session(worker.waker());
        if running.settings().has_store() {
            let _ =
                running.flash_io.set(store::flash_io(&mut session, &worker, running.net.backend()));
        }
        let clock = running.clock;
        let read_clock = Box::new(move || clock.nanos());
        let service = connection::Worker::new(Arc::clone(context), session, read_clock);
        let registry = Arc::clone(&running.registry);
        let service = Guard::new(service, registry, running.settings().protocol);
        let index = worker.index();
        running.workers.fetch_add(1, Relaxed);
        let end = WorkerEnd { running, index, result: Ok(()) };
        std::thread::Builder::new()
            .name(format!("worker-{index}"))
            .spawn(move || {
                // Without this line, the closure would capture only the field `result`, so it would
                // not drop the `WorkerEnd` when the thread ends.
                let mut end = end;
                end.result = worker.run(service);
            })
            .map_err(system("start a worker thread"))
    }

    fn announce(&self) {
        let running = &self.running;
        let settings = running.settings();
        for listener in &running.net.options().listeners {
            info!(event = "listening", address = %listener.endpoint());
        }
        if let Some(address) = self.admin_address() {
            info!(event = "admin_page", url = %format_args!("http://{address}/"));
        }
        for address in self.limit_addresses() {
            info!(event = "limit_port", url = %format_args!("http://{address}/v1/"));
        }
        let lanes = running.engine.lanes();
        info!(
            event = "serving",
            version = env!("CARGO_PKG_VERSION"),
            memory = settings.memory,
            when_full = when_full_name(settings.when_full),
            durability = durability_name(settings.durability()),
            store = if settings.has_store() { settings.show_store() } else { "none".to_owned() },
            store_bytes = if settings.has_store() { store::capacity(&running.engine) } else { 0 },
            lanes = lanes.len(),
            threads = settings.threads,
            io = %running.net.backend(),
        );
    }

    /// Returns the TCP addresses of the data port. A port that the kernel chose replaces port 0.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let listeners = self.running.net.options().listeners.iter();
        listeners.filter_map(Listener::address).collect()
    }

    /// Returns the address of the admin page, if there is one.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|admin| admin.address)
    }

    /// Returns the token of the admin page if this start has created it.
    pub fn admin_token(&self) -> Option<String> {
        self.running.admin_token.get()?.created()
    }

    /// Returns the addresses of the limit port, if there is one.
    pub fn limit_addresses(&self) -> &[SocketAddr] {
        self.limit_port.as_ref().map_or(&[], |port| &port.addresses)
    }

    /// Returns the engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.running.engine
    }

    /// Returns a handle that can ask this server to stop.
    pub fn stopper(&self) -> Stopper {
        self.running.stopper.clone()
    }

    /// Returns a handle that gives this server new settings.
    pub fn reloader(&self) -> Reloader {
        Reloader(Arc::clone(&self.running))
    }

    /// Returns the time limit of a graceful stop, from the settings in use.
    pub fn drain_timeout(&self) -> Duration {
        self.running.settings().drain_timeout
    }

    /// Blocks until a [`Stopper`], the `shutdown` command or a failure requests a stop. Returns the
    /// name of the requester. The server still serves clients when this function returns.
    pub fn wait(&self) -> String {
        self.running.stopper.wait()
    }

    /// Accepts no new connections, gives commands in flight `grace` to finish, and stops.
    ///
    /// # Errors
    /// Returns the reason if the server had ended by itself, or if its store could not be closed.
    pub fn shutdown(mut self, grace: Duration) -> Result<(), Failure> {
        self.end(grace);
        match self.running.stopper.state().failure.take() {
            Some(failure) => Err(Failure(failure)),
            None => Ok(()),
        }
    }

    fn end(&mut self, grace: Duration) {
        if self.workers.is_empty() {
            return;
        }
        self.running.draining.store(true, Relaxed);
        let connections = self.running.net_totals_ever().loops.current_connections;
        debug!(event = "draining", connections, grace_ms = grace.as_millis() as u64);
        let now = self.running.stopper.state().now;
        let grace = if now { Duration::ZERO } else { grace };
        if let Some(admin) = &self.admin {
            admin.close_actions(grace);
        }
        if let Some(port) = &self.limit_port {
            port.stop(grace);
        }
        self.running.net.shut_down(grace);
        for worker in self.workers.drain(..) {
            if worker.join().is_err() {
                error!(event = "worker_panicked");
            }
        }
        self.limit_port = None;
        if let Some(admin) = &self.admin {
            // While the workers ended, a second request to stop may have arrived. It means to stop
            // at once.
            if self.running.stopper.state().now {
                admin.close_actions(Duration::ZERO);
            }
            admin.stop_actions();
        }
        self.sampling = None;
        // The workers and the actions of the admin page have ended, so nothing can write to the
        // store any more.
        if let Err(error) = store::close(&self.running.engine) {
            error!(event = "store_not_closed", %error);
            self.running.stopper.fail(error.to_string());
        }
        if let Some(watch) = self.watch.take() {
            watch.stop();
        }
        self.admin = None;
        if let Some(pidfile) = self.pidfile.take() {
            pidfile.remove();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

/// Starts the admin page. Reads its token from the file that the settings name. Without such a
/// file, creates a new token.
fn start_admin(listener: std::net::TcpListener, settings: &Settings) -> Result<Admin, StartError> {
    let file = settings.admin_token_file.as_deref();
    let token = AdminToken::of(file)
        .map_err(|reason| StartError::AdminToken { file: file.map(Path::to_owned), reason })?;
    Admin::start(listener, settings, token).map_err(system("start the admin page"))
}

fn context(running: &Arc<Running>) -> Arc<ServerContext> {
    let settings = running.settings();
    let hooks = Box::new(ServerHooks(Arc::clone(running)));
    let engine = Arc::clone(&running.engine);
    let mut context = ServerContext::new(engine, running.clock.started(), hooks);
    context.set_switches(settings.switches);
    context.latencies.set_on(settings.latency);
    context.latencies.set_slow_from(settings.slow_command);
    context.registry = Arc::clone(&running.registry);
    let prefixes = Prefixes { delimiter: settings.prefix_delimiter as u8 };
    context.hot_keys = Arc::new(HotKeys::new(prefixes));
    context.hot_keys.set_on(settings.samples_keys());
    context.sampling = Arc::new(ItemSampling::new(prefixes));
    context.policies().replace(&settings.policies);
    context.policies().refused().set_on(settings.samples_keys());
    context.wall_ahead = running.clock.wall_ahead();
    context.version = MEMCACHED_VERSION.to_owned();
    context.verbosity = AtomicU32::new(settings.verbosity);
    context.prefixes = PrefixStats::new(settings.prefix_delimiter as u8);
    context.prefixes.enable(settings.detail);
    Arc::new(context)
}

#[cfg(test)]
mod tests;
