//! The state that all workers share, and the counters of each worker.

use super::PrefixStats;
use crate::clients::Registry;
use crate::connection::arrivals::Arrivals;
use crate::keys::{HotKeys, ItemSampling};
use crate::latency::Latencies;
use crate::net::{Counter, counters};
use crate::policies::CurrentPolicies;
use crate::slow::SlowCommands;
use larder_engine::{Engine, OpenError, ScanCursor, UnixSeconds};
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak};
use std::time::Instant;

/// Operations that commands need and the engine does not offer. The server implements them. Only
/// rare commands call them.
pub trait Hooks: Send + Sync {
    /// Calls `row` with the name and the value of every statistic in `group`. The empty group
    /// stands for `stats` without arguments. Returns false, without a row, for an unknown group.
    fn stats(&self, group: &[u8], row: &mut dyn FnMut(&str, fmt::Arguments<'_>)) -> bool;
    /// Sets the server's counters to zero. The caller has already reset the counters of the engine,
    /// of prefixes and of policies.
    fn reset_stats(&self);
    /// Begins to shut down. If `graceful`, running requests get time to finish.
    fn shutdown(&self, graceful: bool);
    /// Applies a new `verbosity`: 0 logs at the level of the settings, 1 and 2 log more. The
    /// default implementation does nothing, because a server without a log has no log level.
    fn set_verbosity(&self, _level: u32) {}
}

/// The largest verbosity level, as in memcached. Larger arguments are lowered to it.
const VERBOSITY_MAX: u32 = 2;

/// The commands that operators can allow or forbid.
#[derive(Clone, Copy, Debug)]
pub struct Switches {
    /// Allows flush_all (memcached's -F forbids it).
    pub flush: bool,
    /// Allows metadump, mgdump, stats cachedump and stats detail (memcached's -X forbids them).
    pub dump: bool,
    /// Allows shutdown (memcached's -A allows it).
    pub shutdown: bool,
    /// Allows cache_memlimit, store grow, store drain and store keep.
    pub control: bool,
}

impl Default for Switches {
    /// Returns memcached's defaults.
    fn default() -> Self {
        Switches { flush: true, dump: true, shutdown: false, control: true }
    }
}

/// The largest number of concurrent dumps. Each dump takes memory until its client has read it.
/// memcached allows only one dump at a time, so a client that does not read blocks all others.
const DUMPS: usize = 4;
/// Time after which a dump that does not continue may lose its [`DumpPlace`] to a new dump, in
/// seconds. It begins when a client that reads at [`LEAST_RATE`] has read all sent bytes.
const STALLED: UnixSeconds = 10;
/// The lowest reading rate of a client whose dump must not lose its place, in bytes per second.
const LEAST_RATE: u64 = 64 << 10;
/// The largest number of sent bytes that a client is assumed not to have read yet. So a stalled
/// dump keeps its place for at most this number divided by [`LEAST_RATE`], plus [`STALLED`].
const ON_THE_WAY: u64 = 2 << 20;

/// A dump runs only while it has one of the [`DUMPS`] places. The place has the cursor of the
/// dump's scan.
#[derive(Debug)]
pub(super) struct DumpPlace {
    /// `None` after another dump has taken the place.
    pub(super) cursor: Mutex<Option<ScanCursor>>,
    /// The time by which a client that reads at [`LEAST_RATE`] has read all sent bytes, in
    /// milliseconds since the Unix epoch.
    arrives: AtomicU64,
}

impl DumpPlace {
    fn new(now: UnixSeconds) -> Self {
        DumpPlace {
            cursor: Mutex::new(Some(ScanCursor::default())),
            arrives: AtomicU64::new(u64::from(now) * 1000),
        }
    }

    /// Notes that the dump has progressed by `sent` bytes.
    pub(super) fn note(&self, now: UnixSeconds, sent: usize) {
        let (now, sent) = (u64::from(now) * 1000, sent as u64);
        let arrives = self.arrives.load(Relaxed).max(now) + sent * 1000 / LEAST_RATE;
        self.arrives.store(arrives.min(now + ON_THE_WAY * 1000 / LEAST_RATE), Relaxed);
    }

    /// Returns true if the dump is stalled: for at least [`STALLED`] seconds it has not continued,
    /// although its client has had time to read all sent bytes.
    fn stalls(&self, now: UnixSeconds) -> bool {
        u64::from(now.saturating_sub(STALLED)) * 1000 >= self.arrives.load(Relaxed)
    }

    /// Takes the place away from its dump and returns true. Returns false if the dump is scanning
    /// now, because such a dump is not stalled. Does not wait for the scan, because the caller has
    /// locked the list of all dumps.
    fn end(&self) -> bool {
        match self.cursor.try_lock() {
            Ok(mut cursor) => *cursor = None,
            Err(TryLockError::Poisoned(cursor)) => *cursor.into_inner() = None,
            Err(TryLockError::WouldBlock) => return false,
        }
        true
    }
}

/// The state that all workers share.
pub struct ServerContext {
    engine: Arc<Engine>,
    hooks: Box<dyn Hooks>,
    switches: Mutex<Switches>,
    /// The version that the reply `VERSION` names.
    pub version: String,
    /// The engine's time when the server started, in seconds. An absolute expiry time up to this
    /// time counts as past.
    pub started: UnixSeconds,
    /// Seconds by which the wall clock was ahead of the engine's time when the server started;
    /// negative if the wall clock was behind. Clients send absolute times of the wall clock.
    pub wall_ahead: i64,
    /// The level that the last `verbosity` command set.
    pub verbosity: AtomicU32,
    pub(crate) prefixes: PrefixStats,
    policies: Arc<CurrentPolicies>,
    counters: Mutex<Vec<Arc<CommandCounters>>>,
    pub(crate) latencies: Arc<Latencies>,
    pub(crate) slow: Arc<SlowCommands>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) hot_keys: Arc<HotKeys>,
    pub(crate) sampling: Arc<ItemSampling>,
    /// The [`DumpPlace`]s of running dumps.
    dumps: Mutex<Vec<Weak<DumpPlace>>>,
    pub(crate) arrivals: Arc<Arrivals>,
}

impl fmt::Debug for ServerContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerContext").field("switches", &self.switches()).finish_non_exhaustive()
    }
}

impl ServerContext {
    /// Creates the context of a server that started at `started`. The caller may change the public
    /// fields before it shares the context.
    pub fn new(engine: Arc<Engine>, started: UnixSeconds, hooks: Box<dyn Hooks>) -> Self {
        let arrivals = Arc::new(Arrivals::new(&engine));
        ServerContext {
            engine,
            hooks,
            arrivals,
            switches: Mutex::default(),
            version: "1.6.45".to_owned(),
            started,
            wall_ahead: 0,
            verbosity: AtomicU32::new(0),
            prefixes: PrefixStats::default(),
            policies: Arc::default(),
            counters: Mutex::default(),
            latencies: Arc::default(),
            slow: Arc::default(),
            registry: Arc::default(),
            hot_keys: Arc::default(),
            sampling: Arc::default(),
            dumps: Mutex::default(),
        }
    }

    /// Converts a time of the engine to a time of the wall clock.
    pub(super) fn wall(&self, second: UnixSeconds) -> u64 {
        u64::from(second).saturating_add_signed(self.wall_ahead)
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

    /// Returns a place for a new dump. If no place is free, ends a stalled dump and takes its
    /// place. Returns `None` if no dump is stalled either.
    pub(super) fn begin_dump(&self, now: UnixSeconds) -> Option<Arc<DumpPlace>> {
        let mut dumps = self.dumps.lock().unwrap_or_else(PoisonError::into_inner);
        dumps.retain(|place| place.strong_count() > 0);
        if dumps.len() >= DUMPS {
            let places = dumps.iter().enumerate();
            let places = places.filter_map(|(at, place)| Some((at, place.upgrade()?)));
            let mut stalled: Vec<_> = places.filter(|(_, place)| place.stalls(now)).collect();
            stalled.sort_by_key(|(_, place)| place.arrives.load(Relaxed));
            let (at, _) = stalled.iter().find(|(_, place)| place.end())?;
            dumps.swap_remove(*at);
        }
        let place = Arc::new(DumpPlace::new(now));
        dumps.push(Arc::downgrade(&place));
        Some(place)
    }

    /// Sets all counters to zero. All protocols use this for `stats reset`.
    pub(crate) fn reset_stats(&self) {
        self.engine().reset_stats();
        self.prefixes.clear();
        self.policies.reset_counters();
        self.hooks().reset_stats();
        // The list of slow commands is cleared last, after the hooks have reset the count of slow
        // commands. In the other order, a command between the two steps would be listed but not
        // counted.
        self.slow.clear();
    }

    /// Returns the present switches. Takes a lock, so only rare commands call it.
    pub fn switches(&self) -> Switches {
        *self.switches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the switches.
    pub fn set_switches(&self, switches: Switches) {
        *self.switches.lock().unwrap_or_else(PoisonError::into_inner) = switches;
    }

    /// Returns the policies of rate limits. Each worker reads the policies through its own reader.
    pub fn policies(&self) -> &Arc<CurrentPolicies> {
        &self.policies
    }

    /// Sets how much is logged, at most [`VERBOSITY_MAX`].
    pub(crate) fn set_verbosity(&self, level: u32) {
        let level = level.min(VERBOSITY_MAX);
        self.verbosity.store(level, Relaxed);
        self.hooks().set_verbosity(level);
    }

    /// Returns the engine that all workers share.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn hooks(&self) -> &dyn Hooks {
        &*self.hooks
    }

    /// Creates the counters of a new worker, and adds them to the sums that `counters` returns.
    pub(crate) fn register(&self) -> Arc<CommandCounters> {
        let counters = Arc::new(CommandCounters::default());
        self.lock().push(Arc::clone(&counters));
        counters
    }

    /// Returns the sum of all workers' counters.
    pub(crate) fn counters(&self) -> CommandTotals {
        let mut totals = CommandTotals::default();
        self.lock().iter().for_each(|counters| totals.add(counters));
        totals
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<CommandCounters>>> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

counters! { pub(crate) CommandCounters, CommandTotals {
    /// Executed meta commands (`cmd_meta` in `stats`).
    meta_commands,
    /// Connections closed in the middle of a long value, because Larder had freed the value before
    /// it was sent completely.
    values_cut,
} }

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

    /// Each socket accepts 1.25 MiB at once, and then nothing for 20 s, while its client reads that
    /// much at [`LEAST_RATE`]. Such a dump must not lose its place to a new dump.
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
        // From now on the client of `dumps[0]` reads nothing, so only this dump may lose its place.
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
    fn an_unread_dump_loses_its_place() {
        let options = Options { memory: 8 << 20, ..Options::default() };
        let engine = Engine::open_without_threads(options).unwrap();
        let context = ServerContext::new(engine, 1000, Box::new(NoHooks));
        let dumps: Vec<_> = (0..DUMPS).map(|_| context.begin_dump(1000).unwrap()).collect();
        // Only `ON_THE_WAY` of these bytes count: reading 2 MiB at `LEAST_RATE` takes 32 s. After
        // `STALLED` more seconds a new dump gets a place.
        dumps.iter().for_each(|dump| dump.note(1000, 1 << 30));
        assert!(context.begin_dump(1041).is_none());
        assert!(context.begin_dump(1042).is_some());
    }

    /// While all places belong to dumps that are scanning, a new dump must be refused at once,
    /// without waiting for a scan. When the scans have ended, a new dump gets a place.
    #[test]
    fn a_new_dump_does_not_wait_for_a_scan() {
        let options = Options { memory: 8 << 20, ..Options::default() };
        let engine = Engine::open_without_threads(options).unwrap();
        let context = ServerContext::new(engine, 1000, Box::new(NoHooks));
        let dumps: Vec<_> = (0..DUMPS).map(|_| context.begin_dump(1000).unwrap()).collect();
        let scans: Vec<_> = dumps.iter().map(|dump| dump.cursor.lock().unwrap()).collect();
        std::thread::scope(|scope| {
            let (sender, began) = std::sync::mpsc::channel();
            let context = &context;
            scope.spawn(move || sender.send(context.begin_dump(1000 + STALLED).is_some()));
            let began = began.recv_timeout(std::time::Duration::from_secs(20));
            drop(scans);
            assert_eq!(began, Ok(false));
        });
        // While only `dumps[0]` is scanning, a new dump can replace one of the others.
        let _scan = dumps[0].cursor.lock().unwrap();
        assert!(context.begin_dump(1000 + STALLED).is_some());
    }
}
