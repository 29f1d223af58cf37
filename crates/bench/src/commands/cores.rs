//! `larder bench cores`: the cost of sharing the engine between threads. The engine runs without
//! sockets. Its threads get and set in batches, as a server's workers do with pipelined requests.
//! Runs with one thread and with several alternate. The measure is processor time per request. With
//! several threads it is longer, because the threads wait for each other's cache lines and locks.
//!
//! With `--apart` each thread uses a separate engine. The threads then share only the machine, so
//! such a run shows what the machine's processors allow.
//!
//! Cleaners and committers are reported separately. Each lane has one cleaner and one committer, so
//! their time per request limits the requests per second that a lane can sustain.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use clap::Args;
use larder_disk::FileDevice;
use larder_engine::{
    Durability, Engine, Expiry, Key, MachineTime, MonotonicClock, Options, Outcome, Session, Store,
    StoreDevice, StoreOptions, Stored,
};
use serde::Serialize;

use super::output::{JsonFile, Spread, Table};
use crate::generator::thread_cpu;
use crate::process::Probe;
use crate::workload::random::Random;
use crate::{Error, Result, say};

/// Number of requests per batch, as in a server whose clients send pipelines of 16.
const BATCH: usize = 16;
/// The lock of a key's stripe is prefetched this many requests before the key's set, as in the
/// server.
const LOCK_AHEAD: usize = 4;
/// Number of batches between two checks of the flag that ends a run.
const BATCHES_PER_TURN: u32 = 64;
const KEY_BYTES: usize = 15;
const NOW: u32 = 1000;
/// The longest time that a thread waits for free memory. Then it retries its set, because it may
/// have missed the wake-up by the cleaner.
const PATIENCE: Duration = Duration::from_millis(10);

/// How many threads, and what they do.
#[derive(Clone, Debug, Args)]
pub struct CoresArguments {
    /// Numbers of threads to measure; the others are compared with the first one
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_name = "N,…")]
    threads: Vec<usize>,
    /// Number of different keys
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 50)]
    value_size: usize,
    /// Memory limit in MiB
    #[arg(long, default_value_t = 512)]
    memory: u64,
    /// Number of lanes (parts with their own index and cleaner) of the engine without a store
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=32))]
    lanes: u8,
    /// Give each thread a separate engine with all keys and all memory. The threads then share
    /// nothing, which shows the limit of the machine
    #[arg(long)]
    apart: bool,
    /// Directory for a store; without it, only an engine in memory is measured
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Seconds to measure each run
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    time: f64,
    /// Number of rounds; each measures every number of threads
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    #[command(flatten)]
    json: JsonFile,
}

/// The kind of requests that the threads send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Work {
    /// `get` requests for existing keys.
    Get,
    /// `set` requests for existing keys.
    Set,
    /// `set` requests, each with a new key. Memory is full of older items, which are evicted.
    SetNew,
}

impl Work {
    const ALL: [Work; 3] = [Work::Get, Work::Set, Work::SetNew];

    fn name(self) -> &'static str {
        match self {
            Work::Get => "gets",
            Work::Set => "sets",
            Work::SetNew => "sets of new keys",
        }
    }
}

/// The results of one kind of work with one number of threads, over all rounds.
#[derive(Clone, Debug, Serialize)]
struct CoresRow {
    store: bool,
    work: Work,
    threads: usize,
    /// The workers' processor time per request, in nanoseconds.
    ns_per_request: Spread,
    /// Throughput relative to the same work with the first of the measured numbers of threads. It
    /// is computed from processor time, as if each thread had its own processor. Each run is
    /// compared with the run of the same round.
    relative_throughput: Spread,
    /// Processor time of the cleaners per request, in nanoseconds.
    cleaner_ns: Spread,
    /// Processor time of the committers and early writers per request, in nanoseconds.
    writer_ns: Spread,
    requests_per_second: Spread,
}

/// The counts and times of one run.
#[derive(Clone, Copy, Debug, Default)]
struct EngineRun {
    requests: u64,
    worker_ns: u64,
    cleaner_ns: u64,
    writer_ns: u64,
    seconds: f64,
}

impl EngineRun {
    fn per_request(&self, ns: u64) -> f64 {
        ns as f64 / self.requests.max(1) as f64
    }
}

impl CoresArguments {
    pub(super) fn run(self) -> Result<()> {
        if self.threads.is_empty() || self.threads.contains(&0) {
            return Err(Error::usage("there is no work without a thread"));
        }
        let time = Duration::try_from_secs_f64(self.time)
            .map_err(|_| Error::usage("the time is no duration"))?;
        let mut rows = self.measure(None, time)?;
        if let Some(dir) = &self.dir {
            rows.extend(self.measure(Some(dir), time)?);
        }
        self.json.report(table(&rows), &rows)
    }

    /// Opens an engine. Its store, if any, is an unlinked file in `dir`, which vanishes with the
    /// process.
    fn open(&self, dir: Option<&Path>) -> Result<Arc<Engine>> {
        let options = Options {
            memory: self.memory << 20,
            lanes: self.lanes.into(),
            store: dir.map(open_store).transpose()?,
            ..Options::default()
        };
        let engine = Engine::open(options)
            .map_err(|error| Error::io("cannot open the engine", std::io::Error::other(error)))?;
        fill(&engine, self.keys, &vec![b'v'; self.value_size])?;
        Ok(engine)
    }

    fn measure(&self, store: Option<&Path>, time: Duration) -> Result<Vec<CoresRow>> {
        let value = vec![b'v'; self.value_size];
        let most = self.threads.iter().copied().max().unwrap_or(1);
        let count = if self.apart { most } else { 1 };
        let engines = (0..count).map(|_| self.open(store)).collect::<Result<Vec<_>>>()?;
        let (mut rows, mut first_new) = (Vec::new(), self.keys);
        for work in Work::ALL {
            let place = if store.is_some() { "with a store" } else { "in memory" };
            say!("{}, {place} …", work.name());
            let mut runs = vec![Vec::new(); self.threads.len()];
            for round in 0..=self.rounds {
                for (runs, &threads) in runs.iter_mut().zip(&self.threads) {
                    let run =
                        run(&engines, work, threads, time, self.keys, &mut first_new, &value)?;
                    // The first round only brings memory to its steady state, and does not count.
                    if round > 0 {
                        runs.push(run);
                    }
                }
            }
            let alone = runs[0].clone();
            rows.extend(self.threads.iter().zip(&runs).map(|(&threads, runs)| {
                row(store.is_some(), work, threads, runs, (self.threads[0], &alone))
            }));
        }
        for engine in engines {
            engine.close().map_err(|error| Error::io("cannot close the store", error))?;
        }
        Ok(rows)
    }
}

fn row(
    store: bool,
    work: Work,
    threads: usize,
    runs: &[EngineRun],
    (first, alone): (usize, &[EngineRun]),
) -> CoresRow {
    let all = |figure: &dyn Fn(&EngineRun) -> f64| {
        Spread::of(&runs.iter().map(figure).collect::<Vec<f64>>())
    };
    let more = threads as f64 / first as f64;
    let times: Vec<f64> = runs
        .iter()
        .zip(alone)
        .map(|(run, alone)| {
            more * alone.per_request(alone.worker_ns) / run.per_request(run.worker_ns)
        })
        .collect();
    CoresRow {
        store,
        work,
        threads,
        ns_per_request: all(&|run| run.per_request(run.worker_ns)),
        relative_throughput: Spread::of(&times),
        cleaner_ns: all(&|run| run.per_request(run.cleaner_ns)),
        writer_ns: all(&|run| run.per_request(run.writer_ns)),
        requests_per_second: all(&|run| run.requests as f64 / run.seconds),
    }
}

/// Returns a new store in a file that is unlinked at once.
fn open_store(dir: &Path) -> Result<StoreOptions> {
    /// Size of the store in bytes.
    const SIZE: u64 = 4 << 30;
    let path = dir.join(format!("larder-cores-{}", std::process::id()));
    let device = FileDevice::open(&path, Some(SIZE)).map_err(|e| Error::server(e.to_string()))?;
    std::fs::remove_file(&path).map_err(|e| Error::io("cannot unlink the store", e))?;
    let start = Instant::now();
    Ok(StoreOptions {
        devices: vec![StoreDevice {
            name: path.display().to_string(),
            device: Arc::new(device),
            lower: None,
            seeds: [1, 2, 3],
        }],
        forget: Vec::new(),
        durability: Durability::Async,
        sync_interval: Duration::from_secs(1),
        accept_damage: false,
        clock: MonotonicClock(Arc::new(move || start.elapsed())),
        opened: MachineTime::default(),
    })
}

/// Wakes a thread that waits for space.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The session and the requests of one thread.
struct EngineWorker {
    session: Session,
    keys: [[u8; KEY_BYTES]; BATCH],
}

impl EngineWorker {
    /// Returns a worker for the calling thread. The engine wakes this thread when there may be
    /// space.
    fn new(engine: &Arc<Engine>) -> EngineWorker {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut session = engine.session(waker);
        session.tick(NOW);
        EngineWorker { session, keys: [[b'0'; KEY_BYTES]; BATCH] }
    }

    fn choose(&mut self, mut choice: impl FnMut() -> u64) {
        for key in &mut self.keys {
            let mut number = choice();
            for digit in key.iter_mut().rev() {
                *digit = b'0' + (number % 10) as u8;
                number /= 10;
            }
        }
    }

    /// Executes one batch of requests.
    fn batch(&mut self, work: Work, value: &[u8]) -> Result<()> {
        self.session.tick(NOW);
        let session = &self.session;
        let mut keys = self.keys.each_ref().map(|key| session.key(key));
        keys.iter().for_each(|key| session.prefetch_buckets(key));
        keys.iter_mut().for_each(|key| match work {
            Work::Get => session.fetch_record(key),
            Work::Set | Work::SetNew => session.fetch_overwritten(key),
        });
        for at in 0..BATCH {
            if work == Work::Get {
                let Outcome::Ready(Some(item)) = session.get(&keys[at]) else {
                    return Err(Error::Void("a key has gone".to_owned()));
                };
                std::hint::black_box(item.value());
                continue;
            }
            if let Some(later) = keys.get(at + LOCK_AHEAD) {
                session.prefetch_lock(later);
            }
            if !set(session, &keys[at], value)? {
                // Other threads may change the index while this thread waits. So the rest of the
                // batch does not use the hints of the prefetch.
                self.set_the_rest(at, value)?;
                break;
            }
        }
        Ok(())
    }

    fn set_the_rest(&mut self, from: usize, value: &[u8]) -> Result<()> {
        for at in from..BATCH {
            while !set(&self.session, &self.session.key(&self.keys[at]), value)? {
                self.session.sleep();
                thread::park_timeout(PATIENCE);
                self.session.tick(NOW);
            }
        }
        Ok(())
    }
}

/// Stores an item. Returns false if the caller must wait for free memory.
fn set(session: &Session, key: &Key<'_>, value: &[u8]) -> Result<bool> {
    match session.store(key, Store::set(value, 0, Expiry::NEVER)) {
        Outcome::Ready(Stored::Stored { .. }) | Outcome::AfterCommit(Stored::Stored { .. }, _) => {
            Ok(true)
        }
        Outcome::Ready(other) | Outcome::AfterCommit(other, _) => {
            Err(Error::Void(format!("a set was answered with {other:?}")))
        }
        Outcome::NeedsSpace | Outcome::NeedsRead => Ok(false),
        Outcome::Refused(refusal) => Err(Error::Void(format!("the engine refuses: {refusal:?}"))),
    }
}

fn fill(engine: &Arc<Engine>, keys: u64, value: &[u8]) -> Result<()> {
    let (mut worker, mut next) = (EngineWorker::new(engine), 0);
    while next < keys {
        worker.choose(|| {
            next += 1;
            (next - 1).min(keys - 1)
        });
        worker.batch(Work::Set, value)?;
    }
    Ok(())
}

/// Runs `threads` threads for `time`. If there are several engines, each thread uses a different
/// one.
fn run(
    engines: &[Arc<Engine>],
    work: Work,
    threads: usize,
    time: Duration,
    keys: u64,
    first_new: &mut u64,
    value: &[u8],
) -> Result<EngineRun> {
    let cleaner = Probe::own_threads(&["cleaner"]);
    let writer = Probe::own_threads(&["committer", "early writer"]);
    let (cleaner_before, writer_before) = (cleaner.sample()?, writer.sample()?);
    let (stop, began) = (AtomicBool::new(false), Instant::now());
    let first = *first_new;
    let done: Vec<Result<(u64, u64)>> = thread::scope(|scope| {
        let stop = &stop;
        let handles: Vec<_> = (0..threads)
            .map(|thread| {
                let engine = &engines[thread % engines.len()];
                scope.spawn(move || {
                    let mut worker = EngineWorker::new(engine);
                    let mut random = Random::new(first.wrapping_add(thread as u64));
                    let mut new = first + thread as u64;
                    let (began, mut requests) = (thread_cpu(), 0);
                    while !stop.load(Ordering::Relaxed) {
                        for _ in 0..BATCHES_PER_TURN {
                            worker.choose(|| match work {
                                Work::Get | Work::Set => random.below(keys),
                                Work::SetNew => {
                                    new += threads as u64;
                                    new
                                }
                            });
                            worker.batch(work, value)?;
                            requests += BATCH as u64;
                        }
                    }
                    Ok((requests, thread_cpu() - began))
                })
            })
            .collect();
        thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        let lost = || Err(Error::Void("a thread has panicked".to_owned()));
        handles.into_iter().map(|handle| handle.join().unwrap_or_else(|_| lost())).collect()
    });
    let seconds = began.elapsed().as_secs_f64();
    let mut run = EngineRun {
        cleaner_ns: cleaner.sample()?.cpu_ns.saturating_sub(cleaner_before.cpu_ns),
        writer_ns: writer.sample()?.cpu_ns.saturating_sub(writer_before.cpu_ns),
        seconds,
        ..EngineRun::default()
    };
    for done in done {
        let (requests, worker_ns) = done?;
        run.requests += requests;
        run.worker_ns += worker_ns;
    }
    if work == Work::SetNew {
        *first_new += run.requests + threads as u64;
    }
    Ok(run)
}

fn table(rows: &[CoresRow]) -> Table {
    let load = |row: &CoresRow| {
        let place = if row.store { "with a store" } else { "in memory" };
        format!("{}, {place}", row.work.name())
    };
    Table::of(
        2,
        rows,
        &[
            ("", &load),
            ("threads", &|row| row.threads.to_string()),
            ("ns per request", &|row| row.ns_per_request.show(0)),
            ("times the work of the first row", &|row| row.relative_throughput.show(2)),
            ("cleaner, ns per request", &|row| row.cleaner_ns.show(0)),
            ("committer and early writer, ns per request", &|row| row.writer_ns.show(0)),
            ("requests/s", &|row| row.requests_per_second.show(0)),
        ],
    )
}
