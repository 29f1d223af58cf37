//! Opens and closes the devices of the server's store, and reports its recovery. Opening and
//! locking the devices may need rights that the process drops later. The recovery of the store ends
//! before a client is served.

use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_disk::{DEFAULT_SIZE, Device, FileDevice};
use larder_engine::{
    Content, Durability, Engine, LowerDevice, MonotonicClock, OpenError, Progress, Session,
    StoreDevice, StoreOptions,
};
use tracing::{error, info, warn};

use super::devices;
use super::error::{StartError, system};
use crate::admin::AdminState;
use crate::clock::{Clock, random_seed};
use crate::net;
use crate::settings::{Settings, StorePath};

/// If the user gives no size, a new device of the store gets `MEMORY_TIMES` × the memory limit as
/// its size, but at least `DEFAULT_SIZE` and at most a quarter of the free space of its file
/// system.
const MEMORY_TIMES: u64 = 4;

/// Interval between log lines during a long recovery.
const INTERVAL: Duration = Duration::from_secs(1);

/// Opens the devices of `--store` and locks them against other processes.
pub(super) fn open(settings: &Settings, clock: &Clock) -> Result<Option<StoreOptions>, StartError> {
    if !settings.has_store() {
        return Ok(None);
    }
    let used = devices::check(settings)?;
    let open = |store: &StorePath, is_ours: fn(&Content) -> bool| {
        let is_ours = |head: &[u8]| is_ours(&Content::of(head));
        let wanted = DEFAULT_SIZE.max(settings.memory.saturating_mul(MEMORY_TIMES));
        // The size in the settings may be too small, because `store grow` enlarges a device without
        // changing the settings.
        let used = used.iter().find(|(path, _)| *path == store.path).map_or(0, |used| used.1);
        let size = store.size.map(|size| size.max(used));
        let device = FileDevice::open_checked(&store.path, size, wanted, is_ours);
        let device = device.map_err(StartError::Store)?;
        if device.is_new() && store.size.is_none() {
            let (path, bytes) = (device.path().display(), device.size());
            let advice = "give --store PATH:SIZE at a restart to make it larger";
            info!(event = "store_size_chosen", device = %path, bytes, advice);
        }
        if let Some(asked) = store.size.filter(|&asked| asked < device.size()) {
            let (device, bytes) = (device.path().display(), device.size());
            let advice = "a store does not shrink: give --store its size, or none";
            warn!(event = "store_larger_than_asked", %device, bytes, asked, advice);
        }
        if device.is_in_memory() {
            let (device, reason) = (device.path().display(), "it is tmpfs, which lies in memory");
            warn!(event = "store_in_memory", %device, reason, lost = "when the machine restarts");
        }
        Ok(Arc::new(device))
    };
    let name = |store: &StorePath| store.path.display().to_string();
    let mut devices = Vec::new();
    for lane in settings.lanes() {
        devices.push(StoreDevice {
            name: name(lane.first),
            device: open(lane.first, Content::is_store)?,
            lower: match lane.lower {
                Some(lower) => {
                    Some(LowerDevice { name: name(lower), device: open(lower, Content::is_lower)? })
                }
                None => None,
            },
            seeds: [random_seed(), random_seed(), random_seed()],
        });
    }
    let bytes: u64 = devices.iter().map(StoreDevice::capacity).sum();
    if bytes < settings.memory {
        let (memory, advice) = (settings.memory, "the store holds all: give it more than --memory");
        warn!(event = "store_smaller_than_memory", bytes, memory, advice);
    }
    let start = Instant::now();
    Ok(Some(StoreOptions {
        devices,
        forget: settings.forget.clone(),
        durability: settings.durability(),
        sync_interval: settings.sync_interval,
        accept_damage: settings.accept_damage,
        clock: MonotonicClock(Arc::new(move || start.elapsed())),
        opened: *clock.at_start(),
    }))
}

/// Converts an error of the engine. Adds the name of the store if the error concerns the store.
pub(super) fn explain(error: OpenError, settings: &Settings) -> StartError {
    match error {
        OpenError::Store(error) if settings.has_store() => {
            StartError::Recovery { store: settings.show_store(), error }
        }
        error => StartError::Engine(error),
    }
}

/// A callback that receives a short text about the progress of a start.
pub type Tell = Box<dyn FnMut(&str) + Send>;

/// Reports the progress of a recovery to the admin page, the service manager and the log.
pub(super) struct RecoveryReporter<'a> {
    state: Option<&'a AdminState>,
    tell: Option<Tell>,
    told: Instant,
}

impl<'a> RecoveryReporter<'a> {
    /// Begins to report on a recovery.
    pub(super) fn new(state: Option<&'a AdminState>, tell: Option<Tell>) -> Self {
        let mut teller = RecoveryReporter { state, tell, told: Instant::now() };
        // This first message is not logged, because most recoveries end a moment later.
        teller.say("recovering: reading the store");
        teller
    }

    pub(super) fn hear(&mut self, progress: Progress) {
        if self.told.elapsed() < INTERVAL {
            return;
        }
        self.told = Instant::now();
        let text = match progress {
            Progress::Reading { segments, of } => format!("reading segment {segments} of {of}"),
        };
        self.say(&format!("recovering: {text}"));
        info!(event = "recovering", progress = text);
    }

    fn say(&mut self, text: &str) {
        if let Some(state) = self.state {
            state.is_at(text);
        }
        if let Some(tell) = &mut self.tell {
            tell(text);
        }
    }
}

/// Returns the server's clock. With a store, this clock continues the store's time, which may
/// differ from the machine's wall clock.
pub(super) fn set_clock(clock: Clock, engine: &Engine) -> Clock {
    let Some(opened_at) = engine.opened_at() else { return clock };
    let clock = clock.continuing(opened_at);
    if clock.wall_ahead() < 0 {
        warn!(
            event = "clock_behind",
            seconds = -clock.wall_ahead(),
            reason = "the store has been used at a later time than the machine's clock shows",
            advice =
                "if the machine's clock is wrong, set it and restart: absolute times follow it",
        );
    }
    clock
}

/// Returns the capacity of all lanes together, in bytes.
pub(super) fn capacity(engine: &Engine) -> u64 {
    engine.lanes().iter().map(|lane| lane.capacity).sum()
}

/// Logs the result of the recovery.
pub(super) fn report(engine: &Engine, settings: &Settings) {
    let Some(recovered) = engine.recovered() else { return };
    if recovered.discarded {
        warn!(
            event = "store_emptied",
            reason = "it was in use without durability, and its server did not end cleanly",
        );
    }
    if recovered.created {
        info!(event = "store_created", store = settings.show_store(), bytes = capacity(engine));
    } else if !recovered.clean && !recovered.discarded {
        let missing = match settings.durability() {
            Durability::Sync => "no write that was acknowledged with --durability sync".to_owned(),
            _ => "writes acknowledged within the last --sync-interval before the end".to_owned(),
        };
        warn!(event = "unclean_stop", may_be_missing = missing);
    }
    if recovered.damaged_records > 0 || recovered.damaged_segments > 0 {
        error!(
            event = "store_damaged",
            records_lost_at_least = recovered.damaged_records,
            segments_unreadable = recovered.damaged_segments,
            advice = "restore the lost records if you need them; all other records are served",
        );
    }
    if recovered.unremembered {
        warn!(
            event = "damage_not_remembered",
            reason = "the store remembers damage in 128 segments, and there is more",
            advice = "the next start after a crash finds it again: let it evict or accept damage",
        );
    }
    let lanes = engine.lanes();
    for lane in settings.lanes() {
        let name = lane.first.path.display().to_string();
        if !lanes.iter().any(|lane| lane.name == name) {
            warn!(
                event = "device_not_used",
                device = name,
                reason = "it was drained and has no keys: take it out of --store",
            );
        }
    }
    info!(
        event = "recovered",
        store = settings.show_store(),
        items = recovered.items,
        segments = recovered.segments,
        torn_bytes = recovered.dropped_bytes,
        damaged_records = recovered.damaged_records,
        accepted_records = recovered.accepted_records,
        created = recovered.created,
        clean = recovered.clean,
        from_image = recovered.from_image,
        after_ms = recovered.took.as_millis() as u64,
    );
}

/// Chooses how a worker's session reads items that are not in memory. Returns the method's name.
pub(super) fn flash_io(
    session: &mut Session,
    worker: &net::EventLoop,
    backend: &net::Backend,
) -> &'static str {
    if backend.kind == net::BackendKind::Epoll {
        return "threads";
    }
    match session.read_through(worker.event()) {
        Ok(()) => "uring",
        Err(error) => {
            warn!(event = "flash_reads_by_threads", %error);
            "threads"
        }
    }
}

/// Makes all writes durable and marks the store as cleanly stopped.
pub(super) fn close(engine: &Engine) -> Result<(), StartError> {
    engine.close().map_err(system("close the store"))
}
