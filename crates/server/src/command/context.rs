//! What all workers share, and what each of them counts.

use super::PrefixStats;
use crate::connection::arrivals::Arrivals;
use larder_engine::{Engine, ScanCursor, UnixSeconds};
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// What commands need to know and do beyond the engine. Implemented by the server; called for
/// rare commands only.
pub trait Hooks: Send + Sync {
    /// Calls `row` with name and value of every statistic of a group: the empty group is what
    /// `stats` alone shows. Returns false, with no row, for a group that does not exist.
    fn stats(&self, group: &[u8], row: &mut dyn FnMut(&str, fmt::Arguments<'_>)) -> bool;
    /// Sets all counters to zero. Those of the engine and of [`ServerContext`] were reset before.
    fn reset_stats(&self);
    /// Begins to shut down, `graceful` with time for what is running.
    fn shutdown(&self, graceful: bool);
    /// `verbosity` was set to this: 0 is what the settings say, 1 and 2 are more. For whoever keeps
    /// a log; without one there is nothing to do.
    fn set_verbosity(&self, _level: u32) {}
}

/// `verbosity` with more than this is this, as in memcached.
const VERBOSITY_MAX: u32 = 2;

/// What operators may allow and forbid.
#[derive(Clone, Copy, Debug)]
pub struct Switches {
    /// flush_all works (memcached's -F forbids it).
    pub flush: bool,
    /// metadump, mgdump, stats cachedump and stats detail work (-X forbids them).
    pub dump: bool,
    /// shutdown works (-A allows it).
    pub shutdown: bool,
    /// cache_memlimit, store grow, store drain and store keep work.
    pub control: bool,
}

impl Default for Switches {
    /// memcached's defaults.
    fn default() -> Self {
        Switches { flush: true, dump: true, shutdown: false, control: true }
    }
}

/// Dumps that go on at once: each takes memory for as long as its client takes to read it. memcached has one at a
/// time, but there a client that does not read stops all others.
const DUMPS: usize = 4;
/// A dump that did not go on for so many seconds gives its place to another.
const STALLED: UnixSeconds = 10;

/// A dump's place among those that go on, with where it stands.
#[derive(Debug)]
pub(super) struct DumpPlace {
    /// `None` when another has its place.
    pub(super) cursor: Mutex<Option<ScanCursor>>,
    /// When it went on last.
    moved: AtomicU32,
}

impl DumpPlace {
    /// It goes on.
    pub(super) fn note(&self, now: UnixSeconds) {
        self.moved.store(now, Relaxed);
    }
}

/// What all workers share.
pub struct ServerContext {
    engine: Arc<Engine>,
    hooks: Box<dyn Hooks>,
    switches: Mutex<Switches>,
    /// What stands behind `VERSION`.
    pub version: String,
    /// When the server started: an absolute expiry time up to then is in the past.
    pub started: UnixSeconds,
    /// The level that `verbosity` last set.
    pub verbosity: AtomicU32,
    pub(crate) prefixes: PrefixStats,
    counters: Mutex<Vec<Arc<Counters>>>,
    /// Those of dumps that go on.
    dumps: Mutex<Vec<Weak<DumpPlace>>>,
    pub(crate) arrivals: Arc<Arrivals>,
}

impl fmt::Debug for ServerContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerContext").field("switches", &self.switches()).finish_non_exhaustive()
    }
}

impl ServerContext {
    /// The context of a server that started at `started`. Public fields may be changed before it
    /// is shared.
    pub fn new(engine: Arc<Engine>, started: UnixSeconds, hooks: Box<dyn Hooks>) -> Self {
        let arrivals = Arc::new(Arrivals::new(&engine));
        ServerContext {
            engine,
            hooks,
            arrivals,
            switches: Mutex::default(),
            version: "1.6.45".to_owned(),
            started,
            verbosity: AtomicU32::new(0),
            prefixes: PrefixStats::default(),
            counters: Mutex::default(),
            dumps: Mutex::default(),
        }
    }

    /// The place of a dump that begins, unless too many go on. One that stalls is ended for it.
    pub(super) fn begin_dump(&self, now: UnixSeconds) -> Option<Arc<DumpPlace>> {
        let mut dumps = self.dumps.lock().unwrap_or_else(PoisonError::into_inner);
        dumps.retain(|place| place.strong_count() > 0);
        if dumps.len() >= DUMPS {
            let places = dumps.iter().enumerate();
            let places = places.filter_map(|(at, place)| Some((at, place.upgrade()?)));
            let (at, oldest) = places.min_by_key(|(_, place)| place.moved.load(Relaxed))?;
            if now.saturating_sub(oldest.moved.load(Relaxed)) < STALLED {
                return None;
            }
            dumps.swap_remove(at);
            *oldest.cursor.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        let cursor = Mutex::new(Some(ScanCursor::default()));
        let place = Arc::new(DumpPlace { cursor, moved: AtomicU32::new(now) });
        dumps.push(Arc::downgrade(&place));
        Some(place)
    }

    /// `stats reset`, in whatever protocol: every counter begins again at zero.
    pub(super) fn reset_stats(&self) {
        self.engine().reset_stats();
        self.prefixes.clear();
        self.hooks().reset_stats();
    }

    /// What is allowed now. Asked by rare commands only.
    pub fn switches(&self) -> Switches {
        *self.switches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allows and forbids from now on.
    pub fn set_switches(&self, switches: Switches) {
        *self.switches.lock().unwrap_or_else(PoisonError::into_inner) = switches;
    }

    /// Sets how much is logged, at most memcached's 2.
    pub(crate) fn set_verbosity(&self, level: u32) {
        let level = level.min(VERBOSITY_MAX);
        self.verbosity.store(level, Relaxed);
        self.hooks().set_verbosity(level);
    }

    /// The engine that all workers share.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn hooks(&self) -> &dyn Hooks {
        &*self.hooks
    }

    /// Whether `stats detail` is on.
    pub fn detail_enabled(&self) -> bool {
        self.prefixes.is_enabled()
    }

    /// The counters of a new worker.
    pub(crate) fn register(&self) -> Arc<Counters> {
        let counters = Arc::new(Counters::default());
        self.lock().push(Arc::clone(&counters));
        counters
    }

    /// What all workers have counted.
    pub fn counters(&self) -> CounterTotals {
        let mut totals = CounterTotals::default();
        for counters in self.lock().iter() {
            counters.add_to(&mut totals);
        }
        totals
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Counters>>> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What one worker counts; only its thread writes.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: Counter,)* }

        /// The sum of all workers' counters since the start.
        #[derive(Clone, Copy, Debug, Default)]
        pub struct CounterTotals { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            fn add_to(&self, totals: &mut CounterTotals) {
                $(totals.$name += self.$name.0.load(Relaxed);)*
            }
        }
    };
}

counters! {
    /// Meta commands (`cmd_meta`).
    meta_commands,
    /// Requests that were refused as malformed.
    malformed,
    /// Connections that ended because an item vanished while it was sent.
    values_cut,
    /// Values that were refused because connection buffers could not grow.
    buffers_refused,
}

/// A counter with one writer.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn bump(&self) {
        self.0.store(self.0.load(Relaxed).wrapping_add(1), Relaxed);
    }
}
