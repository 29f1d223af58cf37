//! The store's part in the life of a server: opened and locked while the process still has all its
//! rights, recovered before any client may connect, watched while it is used, closed at the end.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use larder_disk::FileDevice;
use larder_engine::{
    Content, Engine, Health, LaneState, LowerDevice, MonotonicClock, OpenError, Progress, Session,
    StoreDevice, StoreOptions,
};
use tracing::{error, info, warn};

use super::{StartError, devices};
use crate::admin::Subject;
use crate::clock::{Clock, random_seed};
use crate::net;
use crate::settings::{Settings, StorePath};

/// How often the log hears of a long recovery, and how soon of a store that fails.
const INTERVAL: Duration = Duration::from_secs(1);

/// Opens what `--store` names, for this process alone.
pub(super) fn open(settings: &Settings, clock: &Clock) -> Result<Option<StoreOptions>, StartError> {
    if !settings.has_store() {
        return Ok(None);
    }
    devices::check(settings)?;
    let open = |store: &StorePath, is_ours: fn(&Content) -> bool| {
        let is_ours = |head: &[u8]| is_ours(&Content::of(head));
        let device = FileDevice::open_checked(&store.path, store.size, is_ours);
        device.map_err(StartError::Store).map(Arc::new)
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
    let start = Instant::now();
    Ok(Some(StoreOptions {
        devices,
        forget: settings.forget.clone(),
        durability: settings.durability(),
        sync_interval: settings.sync_interval,
        accept_damage: settings.accept_damage,
        clock: MonotonicClock(Arc::new(move || start.elapsed())),
        created: clock.wall_seconds(),
    }))
}

/// Names the store in what is wrong with it.
pub(super) fn explain(error: OpenError, settings: &Settings) -> StartError {
    match error {
        OpenError::Store(error) if settings.has_store() => {
            StartError::Recovery { store: settings.show_store(), error }
        }
        error => StartError::Engine(error),
    }
}

/// Takes a few words about what a start is at.
pub type Tell = Box<dyn FnMut(&str) + Send>;

/// Tells admin page, service manager and log how far a recovery is.
pub(super) struct Teller<'a> {
    subject: Option<&'a Subject>,
    tell: Option<Tell>,
    told: Instant,
}

impl<'a> Teller<'a> {
    /// A recovery begins.
    pub(super) fn new(subject: Option<&'a Subject>, tell: Option<Tell>) -> Self {
        let mut teller = Teller { subject, tell, told: Instant::now() };
        // The log hears nothing of it: most recoveries have ended a moment later.
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
        if let Some(subject) = self.subject {
            subject.is_at(text);
        }
        if let Some(tell) = &mut self.tell {
            tell(text);
        }
    }
}

/// Says what was found.
pub(super) fn report(engine: &Engine, settings: &Settings) {
    let Some(recovered) = engine.recovered() else { return };
    if recovered.discarded {
        warn!(
            event = "store_emptied",
            reason = "it was in use without durability, and its server did not end cleanly",
        );
    }
    if recovered.damaged_records > 0 || recovered.damaged_segments > 0 {
        error!(
            event = "store_damaged",
            records_lost_at_least = recovered.damaged_records,
            segments_unreadable = recovered.damaged_segments,
            advice = "restore what must not be missing; the rest is served",
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
        created = recovered.created,
        clean = recovered.clean,
        from_image = recovered.from_image,
        after_ms = recovered.took.as_millis() as u64,
    );
}

/// Settles how a worker's session reads what is not in memory; the answer names the way.
pub(super) fn flash_io(
    session: &mut Session,
    worker: &net::Worker,
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

/// Makes everything durable and marks the end as a clean one.
pub(super) fn close(engine: &Engine) -> Result<(), StartError> {
    engine.close().map_err(super::system("close the store"))
}

/// The reason why the store takes no writes, if it takes none.
pub(crate) fn failure(engine: &Engine) -> Option<String> {
    match engine.health() {
        Health::Good => None,
        Health::Failing { reason } => Some(reason),
    }
}

/// Puts into the log when a store begins to fail and when it has healed, and how keys move between its
/// devices.
#[derive(Debug)]
pub(super) struct Watch {
    end: Sender<()>,
    thread: JoinHandle<()>,
}

impl Watch {
    /// Watches on a thread of its own.
    pub(super) fn start(engine: Arc<Engine>) -> std::io::Result<Watch> {
        let (end, ended) = mpsc::channel();
        let watch = move || {
            let mut failing: Option<Instant> = None;
            let mut moves = Moves::default();
            while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                match (failure(&engine), failing) {
                    (Some(reason), None) => {
                        error!(event = "store_failing", reason, writes = "refused");
                        failing = Some(Instant::now());
                    }
                    (None, Some(since)) => {
                        info!(event = "store_healed", after_s = since.elapsed().as_secs());
                        failing = None;
                    }
                    _ => {}
                }
                moves.look_at(engine.lanes());
            }
        };
        let thread = std::thread::Builder::new().name("store-watch".to_owned()).spawn(watch)?;
        Ok(Watch { end, thread })
    }

    pub(super) fn stop(self) {
        // If nobody hears it the thread has ended already.
        let _ = self.end.send(());
        let _ = self.thread.join();
    }
}

/// What the log was told of keys that move between devices.
#[derive(Debug, Default)]
struct Moves {
    lanes: Vec<LaneState>,
    moving: bool,
}

impl Moves {
    fn look_at(&mut self, lanes: Vec<LaneState>) {
        let before = std::mem::replace(&mut self.lanes, lanes);
        let shares = |lanes: &[LaneState]| lanes.iter().map(|l| l.partitions).collect::<Vec<_>>();
        let moving = !before.is_empty() && shares(&before) != shares(&self.lanes);
        if moving || self.moving {
            let shares: Vec<String> =
                self.lanes.iter().map(|l| format!("{}:{}", l.name, l.partitions)).collect();
            let event = if moving { "keys_moving" } else { "keys_moved" };
            info!(event, shares_of_4096 = shares.join(" "));
        }
        self.moving = moving;
        for lane in self.lanes.iter().filter(|lane| lane.drained) {
            if before.iter().any(|other| other.number == lane.number && !other.drained) {
                info!(
                    event = "device_drained",
                    device = lane.name,
                    advice = "take it out of --store"
                );
            }
        }
    }
}
