//! What all workers share, and what each of them counts.

use super::PrefixStats;
use crate::connection::arrivals::Arrivals;
use larder_engine::{Engine, OpenError, ScanCursor, UnixSeconds};
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

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
/// A dump whose client pauses for so many seconds gives its place to another.
const STALLED: UnixSeconds = 10;
/// A client that takes so many bytes a second does not pause, although its dump may not go on for longer: what
/// was sent may still be on its way to the client.
const LEAST_RATE: u64 = 64 << 10;
/// Bytes that may be on their way.
const ON_THE_WAY: u64 = 2 << 20;

/// A dump's place among those that go on, with where it stands.
#[derive(Debug)]
pub(super) struct DumpPlace {
    /// `None` when another has its place.
    pub(super) cursor: Mutex<Option<ScanCursor>>,
    /// When what was sent has arrived at a client that takes [`LEAST_RATE`], in milliseconds.
    arrives: AtomicU64,
}

impl DumpPlace {
    fn new(now: UnixSeconds) -> Self {
        DumpPlace {
            cursor: Mutex::new(Some(ScanCursor::default())),
            arrives: AtomicU64::new(u64::from(now) * 1000),
        }
    }

    /// It goes on, by `sent` bytes.
    pub(super) fn note(&self, now: UnixSeconds, sent: usize) {
        let (now, sent) = (u64::from(now) * 1000, sent as u64);
        let arrives = self.arrives.load(Relaxed).max(now) + sent * 1000 / LEAST_RATE;
        self.arrives.store(arrives.min(now + ON_THE_WAY * 1000 / LEAST_RATE), Relaxed);
    }

    /// Whether its client pauses.
    fn stalls(&self, now: UnixSeconds) -> bool {
        u64::from(now.saturating_sub(STALLED)) * 1000 >= self.arrives.load(Relaxed)
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
    counters: Mutex<Vec<Arc<CommandCounters>>>,
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

    /// Changes the memory limit.
    ///
    /// # Errors
    /// As for [`Engine::set_memory_limit`].
    pub(crate) fn set_memory_limit(&self, bytes: u64) -> Result<(), OpenError> {
        self.engine.set_memory_limit(bytes)?;
        self.arrivals.buffers.trim(Instant::now());
        Ok(())
    }

    /// The place of a dump that begins, unless too many go on. One that stalls is ended for it.
    pub(super) fn begin_dump(&self, now: UnixSeconds) -> Option<Arc<DumpPlace>> {
        let mut dumps = self.dumps.lock().unwrap_or_else(PoisonError::into_inner);
        dumps.retain(|place| place.strong_count() > 0);
        if dumps.len() >= DUMPS {
            let places = dumps.iter().enumerate();
            let places = places.filter_map(|(at, place)| Some((at, place.upgrade()?)));
            let (at, slowest) = places.min_by_key(|(_, place)| place.arrives.load(Relaxed))?;
            if !slowest.stalls(now) {
                return None;
            }
            dumps.swap_remove(at);
            *slowest.cursor.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        let place = Arc::new(DumpPlace::new(now));
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
    pub(crate) fn register(&self) -> Arc<CommandCounters> {
        let counters = Arc::new(CommandCounters::default());
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

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<CommandCounters>>> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What one worker counts; only its thread writes.
        #[derive(Debug, Default)]
        pub(crate) struct CommandCounters { $(pub(crate) $name: Counter,)* }

        /// The sum of all workers' counters since the start.
        #[derive(Clone, Copy, Debug, Default)]
        pub struct CounterTotals { $($(#[$doc])* pub $name: u64,)* }

        impl CommandCounters {
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

#[cfg(test)]
mod tests {
    use super::*;
    use larder_engine::Options;

    struct NoHooks;

    impl Hooks for NoHooks {
        fn stats(&self, _: &[u8], _: &mut dyn FnMut(&str, fmt::Arguments<'_>)) -> bool {
            false
        }
        fn reset_stats(&self) {}
        fn shutdown(&self, _: bool) {}
    }

    /// A socket takes a few hundred KiB at once, and then nothing until most of that has been read.
    #[test]
    fn a_dump_that_is_read_slowly_but_steadily_keeps_its_place() {
        let options = Options { memory: 8 << 20, ..Options::default() };
        let engine = Engine::open_without_threads(options).unwrap();
        let context = ServerContext::new(engine, 1000, Box::new(NoHooks));
        let has_place = |dump: &DumpPlace| dump.cursor.lock().unwrap().is_some();
        let dumps: Vec<_> = (0..DUMPS).map(|_| context.begin_dump(1000).unwrap()).collect();
        let mut now = 1000;
        for _ in 0..20 {
            dumps.iter().for_each(|dump| (0..20).for_each(|_| dump.note(now, 64 << 10)));
            for _ in 0..20 {
                now += 1;
                assert!(context.begin_dump(now).is_none(), "at {now}");
            }
        }
        // One pauses now.
        dumps[1..].iter().for_each(|dump| (0..20).for_each(|_| dump.note(now, 64 << 10)));
        let began = now;
        let fifth = loop {
            now += 1;
            assert!(now < began + 30, "it keeps its place for ever");
            if let Some(fifth) = context.begin_dump(now) {
                break fifth;
            }
        };
        assert!(now >= began + STALLED, "{} s", now - began);
        assert!(
            has_place(&fifth) && !has_place(&dumps[0]) && dumps[1..].iter().all(|d| has_place(d))
        );
        assert!(context.begin_dump(now).is_none());
    }

    #[test]
    fn a_dump_that_nobody_reads_gives_its_place_up() {
        let options = Options { memory: 8 << 20, ..Options::default() };
        let engine = Engine::open_without_threads(options).unwrap();
        let context = ServerContext::new(engine, 1000, Box::new(NoHooks));
        let dumps: Vec<_> = (0..DUMPS).map(|_| context.begin_dump(1000).unwrap()).collect();
        // However much the sockets took.
        dumps.iter().for_each(|dump| dump.note(1000, 1 << 30));
        assert!(context.begin_dump(1041).is_none());
        assert!(context.begin_dump(1042).is_some());
    }
}
