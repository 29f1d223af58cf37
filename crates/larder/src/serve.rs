//! `larder serve`: runs a server in this process, from start to stop. Before it creates its first
//! thread, the process must go to the background and block signals: a fork copies only one thread,
//! and new threads inherit the blocked signals.

use larder_bench::complain;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use larder_server::notify::{Notifier, inherited_sockets};
use larder_server::process::{Background, Daemon, daemonize};
use larder_server::server::{Host, Listed, Reloader, Server, Stopper};
use larder_server::settings::{LogFormat, Settings, SettingsError};
use larder_server::signals::{Signal, Signals};
use tracing::{error, info, warn};

use crate::logging::{self, LogFile};
use crate::{FAILED, NOT_STARTED};

/// Serves until a signal, a client or a failure requests a stop. `load` reads the settings again
/// for a reload.
pub(crate) fn run(
    settings: Settings,
    load: impl Fn() -> Result<Settings, SettingsError> + Send + Sync + 'static,
) -> ExitCode {
    let inherited = inherited_sockets();
    let background = match settings.daemon.then(daemonize).transpose() {
        Ok(None) => None,
        Ok(Some(Daemon::Child(background))) => Some(background),
        Ok(Some(Daemon::Parent(code))) => return ExitCode::from(code),
        Err(error) => return not_started(None, &format!("cannot go to the background: {error}")),
    };
    let signals = match Signals::take() {
        Ok(signals) => signals,
        Err(error) => return not_started(background, &format!("cannot block signals: {error}")),
    };
    let log_file = match settings.log_file.as_deref().map(LogFile::open).transpose() {
        Ok(file) => file.map(Arc::new),
        Err(error) => {
            let path = settings.log_file.unwrap_or_default();
            let reason = format!("cannot write --log-file {}: {error}", path.display());
            return not_started(background, &reason);
        }
    };
    let (level, format) = (settings.effective_log_level(), settings.log_format);
    let set_log_level = logging::start(level, format, log_file.clone());
    let keeps_log = settings.verbosity > 0 || log_file.is_some();
    let notifier = Arc::new(Notifier::of_process());
    notifier.status("starting");
    let verbose = settings.verbosity > 0;
    let start = Arc::new(Start::default());
    listen(signals, Arc::clone(&start), log_file, load);
    let (told, serves) = (Arc::clone(&notifier), Arc::clone(&start));
    let host = Host {
        sockets: inherited,
        set_log_level: Some(set_log_level),
        starting: Some(Box::new(move |status| told.starting(status))),
        serving: Some(Box::new(move || *serves.serving() = true)),
    };
    let server = match Server::start_in(settings, host) {
        Ok(server) => server,
        Err(error) => return not_started(background, &error.to_string()),
    };
    show_token(&server, format);
    if background.is_some() && !keeps_log {
        warn!(event = "log_ends", reason = "in the background", advice = "give --log-file FILE");
    }
    if let Some(background) = background
        && let Err(error) = background.settle(verbose)
    {
        error!(event = "not_in_background", %error);
        return ExitCode::from(NOT_STARTED);
    }
    notifier.ready("serving");
    // `set` fails only if `running` is already set, and only this line sets it.
    let _ = start.running.set((server.stopper(), server.reloader()));
    let reason = server.wait();
    stop(server, &reason, &notifier)
}

/// Stops a server. Gives its running commands the drain time-out to finish.
fn stop(server: Server, reason: &str, notifier: &Notifier) -> ExitCode {
    info!(event = "stopping", reason);
    notifier.stopping("finishing commands in flight");
    let begun = Instant::now();
    let grace = server.drain_timeout();
    match server.shutdown(grace) {
        Ok(()) => {
            info!(event = "stopped", after_ms = begun.elapsed().as_millis() as u64);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            error!(event = "failed", %failure);
            ExitCode::from(FAILED)
        }
    }
}

/// If this start has created the admin page's token, prints it on the standard error output. Prints
/// it outside the log, so that it reaches no log file. With JSON logs it is not printed, because a
/// log collector may read the standard error output.
fn show_token(server: &Server, format: LogFormat) {
    match server.admin_token() {
        Some(_) if format == LogFormat::Json => {
            info!(event = "admin_token_hidden", advice = "give --admin-token-file FILE");
        }
        Some(token) => complain!("token for changes on the admin page, until the stop: {token}"),
        None => {}
    }
}

fn not_started(background: Option<Background>, reason: &str) -> ExitCode {
    complain!("error: {reason}");
    if let Some(background) = background {
        background.fail(NOT_STARTED);
    }
    ExitCode::from(NOT_STARTED)
}

/// The progress of the start, which the main thread shares with the thread that handles signals.
#[derive(Default)]
struct Start {
    /// True once the server may have served clients. If a stop signal arrives while it is false,
    /// the signal thread ends the process. The signal thread holds this lock from its check until
    /// the process has ended, so no client can be served in between.
    serving: Mutex<bool>,
    /// Set once the start is complete.
    running: OnceLock<(Stopper, Reloader)>,
}

impl Start {
    fn serving(&self) -> MutexGuard<'_, bool> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts a thread that handles signals until the process ends. A stop signal before the first
/// client is served ends the process at once. This loses nothing: no write was acknowledged yet,
/// and recovery may be interrupted at any point. A later stop signal, and every reload of the
/// settings, takes effect once the start is complete.
fn listen(
    signals: Signals,
    start: Arc<Start>,
    log_file: Option<Arc<LogFile>>,
    load: impl Fn() -> Result<Settings, SettingsError> + Send + Sync + 'static,
) {
    let load = Arc::new(load);
    let hear = move || {
        let mut owes_reload = false;
        loop {
            let signal = signals.wait();
            if signal == Signal::Reload
                && let Some(Err(error)) = log_file.as_deref().map(LogFile::reopen)
            {
                error!(event = "log_file_not_reopened", %error, kept = "the file that is open");
            }
            match (signal, start.running.get()) {
                (Signal::Reload, Some((_, reloader))) => reload(reloader, &*load),
                (Signal::Reload, None) => {
                    // All reload signals during the start cause one reload, which reads the
                    // settings after the start.
                    if !std::mem::replace(&mut owes_reload, true) {
                        let (start, load) = (Arc::clone(&start), Arc::clone(&load));
                        spawn("reload", move || reload(&start.running.wait().1, &*load));
                    }
                }
                (Signal::Stop(name), _) => {
                    let serving = start.serving();
                    if !*serving {
                        end_start(name);
                    }
                    drop(serving);
                    let (stopper, _) = start.running.wait();
                    if !stopper.stop(name) {
                        warn!(event = "stopping_now", reason = name, signals = 2);
                        stopper.stop_now(name);
                    }
                }
            }
        }
    };
    spawn("signals", hear);
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    if let Err(error) = std::thread::Builder::new().name(name.to_owned()).spawn(work) {
        warn!(event = "signals_ignored", thread = name, %error);
    }
}

/// Ends the process during its start, before it has served a client.
#[expect(clippy::disallowed_methods, reason = "main waits for the start, which is to be cut off")]
fn end_start(signal: &str) -> ! {
    info!(event = "stopped", reason = format!("{signal} during the start"));
    std::process::exit(0)
}

/// Reads the settings again and applies those that can change while the server runs.
fn reload(reloader: &Reloader, load: &impl Fn() -> Result<Settings, SettingsError>) {
    match load() {
        Ok(settings) => {
            let reloaded = reloader.reload(&settings);
            info!(
                event = "reloaded",
                changed = %Listed(&reloaded.changed),
                needs_restart = %Listed(&reloaded.needs_restart),
            );
            for refused in &reloaded.refused {
                error!(event = "setting_not_changed", refused);
            }
        }
        Err(error) => error!(event = "reload_failed", %error, kept = "the settings in use"),
    }
}
