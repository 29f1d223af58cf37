//! `larder bench growth`: how the cost of background work, look-ups and statistics depends on the
//! number of segments in a store. Besides times, it counts the segments that the engine looks at,
//! the bytes that it reads and the locks that it takes. The engine runs without threads. Its device
//! forgets cold segments, and reading one fails. At the end the engine stops as if its process had
//! been killed, and a start on the same device is measured.

mod device;

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use clap::Args;
use larder_disk::Device;
use larder_engine::{
    Delete, Durability, Engine, Expiry, MachineTime, ManualCleaner, MonotonicClock, Options,
    Outcome, Session, Stats, Store, StoreDevice, StoreOptions, UnixSeconds, locks_taken,
};
use serde::Serialize;

use self::device::{Calls, ForgetfulDevice, PageKind};
use super::output::{JsonFile, Table};
use crate::generator::thread_cpu;
use crate::workload::random::Random;
use crate::{Error, Result, say};

/// Segment size in bytes: the smallest that a store can have, so that few bytes make many segments.
/// A store gets segments of this size if it is created with little memory.
const SEGMENT: u64 = 64 << 10;
/// Bytes that a segment occupies on the device, including both copies of its meta.
const PLACE: u64 = SEGMENT + (8 << 10);
/// 1/`FREE_SHARE` of a store's segments stay free.
const FREE_SHARE: u64 = 16;
/// Length of a cold value in bytes. Two such items fill a segment, with room for the summary.
const COLD_VALUE: usize = 30_000;
const HOT_KEYS: u64 = 2_000;
const HOT_VALUE: usize = 100;
/// Time to live of a hot item, in seconds.
const HOT_TTL: UnixSeconds = 3;
/// Number of requests after which the engine's clock advances by one second.
const PER_SECOND: u64 = 2_000;
/// Number of requests after which one turn of background work runs.
const PER_TURN: u64 = 500;
/// The device always keeps the contents of its first `KEPT` bytes. The benchmark reads and deletes
/// cold items only there, because a read of forgotten bytes fails.
const KEPT: u64 = 256 << 20;
/// Of the cold items in the first `KEPT` bytes, the first 1/`READ_SHARE` are only read, never
/// deleted.
const READ_SHARE: u64 = 3;
/// Number of bytes that the device remembers besides its first `KEPT` bytes. It forgets first what
/// it has remembered longest.
const REMEMBERED: u64 = 64 << 20;
const SCRAPES: u64 = 1_000;
const LOOK_UPS: u64 = 1_000;
/// A cost counts as flat if its largest value is at most this many times its smallest value.
const FLAT: f64 = 2.0;

/// The sizes of the store, and the load.
#[derive(Clone, Debug, Args)]
pub struct GrowthArguments {
    /// Numbers of segments of the store; each number is one run
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "10000,100000,1000000",
        value_name = "N,…",
        value_parser = clap::value_parser!(u32).range(500..=8_000_000)
    )]
    segments: Vec<u32>,
    /// Number of requests to measure in each run; about half of them set items that expire
    #[arg(long, default_value_t = 200_000, value_name = "N")]
    requests: u64,
    /// Percent of the requests that delete an item of the initial fill
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=50))]
    cold_deletes: u8,
    #[command(flatten)]
    json: JsonFile,
}

/// The costs at one size of the store. A *turn* is one call of `World::turn`.
#[derive(Clone, Debug, Serialize)]
struct GrowthRow {
    segments: u32,
    items: u64,
    fill_seconds: f64,
    /// Bytes that are charged to the memory budget before the fill, per segment.
    tables_per_segment: f64,
    /// Bytes that are charged to the memory budget after the fill, per segment.
    memory_per_segment: f64,
    turns: u64,
    freed_segments: u64,
    looked_at_per_turn: f64,
    looked_at_per_freed: f64,
    locks_per_turn: f64,
    looked_at_per_commit: f64,
    read_per_commit: f64,
    locks_per_commit: f64,
    most_looked_at_in_turn: u64,
    /// Processor time per request. All fields in microseconds (`us`) are processor times, so they
    /// do not include the time of other programs.
    us_per_request: f64,
    /// The longest turn in which the kernel did not join pages of memory to a huge page. Such a
    /// join takes long, regardless of the size of the store.
    longest_turn_us: f64,
    /// The longest turn in which the kernel joined pages to a huge page.
    longest_joining_turn_us: f64,
    read_per_freed_segment: f64,
    written_per_freed_segment: f64,
    map_bytes_per_freed_byte: f64,
    looked_at_per_scrape: f64,
    us_per_scrape: f64,
    locks_per_scrape: f64,
    reads_per_look_up: f64,
    bytes_per_look_up: f64,
    /// Includes the locks of the turn that reads the record.
    locks_per_look_up: f64,
    /// Number of reads since the fill that failed because the page was forgotten. They happen if a
    /// requested key has the same tag in the index as a cold item.
    forgotten_reads: u64,
    start: StartRow,
}

/// The costs of a start after a crash.
#[derive(Clone, Debug, Serialize)]
struct StartRow {
    seconds: f64,
    items: u64,
    /// Reads per segment that begin in a meta or at a segment's beginning: those of the survey, the
    /// first pass over all places, and of whole segments that have no summary.
    survey_reads_per_segment: f64,
    survey_bytes_per_segment: f64,
    /// Reads per segment that begin elsewhere in a segment, as those of summaries do.
    other_reads_per_segment: f64,
    other_bytes_per_segment: f64,
}

impl GrowthArguments {
    pub(super) fn run(self) -> Result<()> {
        let mut rows = Vec::new();
        for &segments in &self.segments {
            say!("{segments} segments …");
            rows.push(self.measure(segments)?);
        }
        self.json.report(table(&rows), &rows)
    }

    fn measure(&self, segments: u32) -> Result<GrowthRow> {
        let begun = Instant::now();
        let mut world = World::new(segments)?;
        let tables = world.engine.memory_used();
        let cold = world.fill(segments)?;
        let fill_seconds = begun.elapsed().as_secs_f64();
        let memory = world.engine.memory_used();
        let forgotten = world.device.calls().forgotten;
        // The first requests warm up the store.
        world.serve(self.requests / 2, self.cold_deletes, cold)?;
        let (before, began) = (world.counts(), thread_cpu());
        world.turn = Turns::default();
        world.serve(self.requests, self.cold_deletes, cold)?;
        let (served, after) = (cpu_since(began), world.counts());
        let turn = world.turn;
        let turns = after.turns - before.turns;
        let looked_at = after.looked_at - before.looked_at;
        let freed_bytes = after.stats.freed_bytes - before.stats.freed_bytes;
        let freed = freed_bytes / SEGMENT;
        let [scraped_at, scrape_us, scrape_locks] = world.scrape();
        let [reads, bytes, look_up_locks] = world.look_up(cold)?;
        let forgotten = world.device.calls().forgotten - forgotten;
        let start = world.start_again(segments)?;

        let by = |work: u64, by: u64| work as f64 / by.max(1) as f64;
        Ok(GrowthRow {
            segments,
            items: before.stats.items,
            fill_seconds,
            tables_per_segment: by(tables, segments.into()),
            memory_per_segment: by(memory, segments.into()),
            turns,
            freed_segments: freed,
            looked_at_per_turn: by(looked_at, turns),
            looked_at_per_freed: by(looked_at, freed),
            us_per_request: served.as_secs_f64() * 1e6 / self.requests as f64,
            locks_per_turn: by(turn.locks, turns),
            looked_at_per_commit: by(turn.commits.looked_at, turns),
            read_per_commit: by(turn.commits.read, turns),
            locks_per_commit: by(turn.commits.locks, turns),
            most_looked_at_in_turn: turn.most_looked_at,
            longest_turn_us: turn.longest.as_secs_f64() * 1e6,
            longest_joining_turn_us: turn.longest_joining.as_secs_f64() * 1e6,
            read_per_freed_segment: by(after.calls.bytes_read - before.calls.bytes_read, freed),
            written_per_freed_segment: by(
                after.calls.bytes_written - before.calls.bytes_written,
                freed,
            ),
            map_bytes_per_freed_byte: by(
                after.stats.map_written_bytes - before.stats.map_written_bytes,
                freed_bytes,
            ),
            looked_at_per_scrape: scraped_at,
            us_per_scrape: scrape_us,
            locks_per_scrape: scrape_locks,
            reads_per_look_up: reads,
            bytes_per_look_up: bytes,
            locks_per_look_up: look_up_locks,
            forgotten_reads: forgotten,
            start,
        })
    }
}

/// Returns the processor time that this thread has used since `began`, an earlier [`thread_cpu`].
fn cpu_since(began: u64) -> Duration {
    Duration::from_nanos(thread_cpu().saturating_sub(began))
}

/// The counts since the [`World`] was created.
#[derive(Clone, Debug)]
struct Counts {
    turns: u64,
    looked_at: u64,
    calls: Calls,
    stats: Stats,
}

/// Sums over the turns, and the largest values of single turns. `measure` resets them after the
/// warm-up.
#[derive(Clone, Copy, Debug, Default)]
struct Turns {
    locks: u64,
    /// The work of the commits, one per turn.
    commits: CommitWork,
    most_looked_at: u64,
    longest: Duration,
    longest_joining: Duration,
}

/// The work of commits.
#[derive(Clone, Copy, Debug, Default)]
struct CommitWork {
    looked_at: u64,
    /// Bytes.
    read: u64,
    locks: u64,
}

/// An engine without threads on a forgetful device.
struct World {
    device: Arc<ForgetfulDevice>,
    engine: Arc<Engine>,
    session: Session,
    cleaner: ManualCleaner,
    now: UnixSeconds,
    random: Random,
    turns: u64,
    turn: Turns,
    deleted: u64,
}

/// Returns the number of cold items that the device never forgets.
fn kept_items(cold: u64) -> u64 {
    (2 * (KEPT / PLACE - 16)).min(cold)
}

/// Returns the engine's memory in bytes: enough for the segment tables and an index of two items
/// per segment.
fn memory(segments: u32) -> u64 {
    (16 << 20) + u64::from(segments) * 1024
}

fn open(device: &Arc<ForgetfulDevice>, memory: u64) -> Result<Arc<Engine>> {
    let store = StoreOptions {
        devices: vec![StoreDevice {
            name: "growth".to_owned(),
            device: Arc::<ForgetfulDevice>::clone(device),
            lower: None,
            seeds: [1, 2, 3],
        }],
        forget: Vec::new(),
        durability: Durability::Async,
        sync_interval: Duration::from_secs(1),
        accept_damage: false,
        clock: MonotonicClock(Arc::new(|| Duration::ZERO)),
        opened: MachineTime::default(),
    };
    let options = Options { memory, store: Some(store), ..Options::default() };
    Engine::open_without_threads(options)
        .map_err(|error| Error::io("cannot open the store", std::io::Error::other(error)))
}

impl World {
    fn new(segments: u32) -> Result<World> {
        // A store created with the least memory gets the smallest segments. Its device grows
        // afterwards.
        let small = 64 * PLACE;
        let device = Arc::new(ForgetfulDevice::new(small, SEGMENT, KEPT, REMEMBERED));
        let engine = open(&device, 8 << 20)?;
        engine.close().map_err(|error| Error::io("cannot close the store", error))?;
        drop(engine);
        let bytes = u64::from(segments) * PLACE + (1 << 20);
        device.grow(bytes).map_err(|error| Error::io("cannot grow the store", error))?;
        let engine = open(&device, memory(segments))?;
        let now = 1000;
        let mut session = engine.session(Waker::noop().clone());
        session.tick(now);
        let (cleaner, turn) = (ManualCleaner::default(), Turns::default());
        let (random, turns, deleted) = (Random::new(1), 0, 0);
        Ok(World { device, engine, session, cleaner, now, random, turns, turn, deleted })
    }

    fn counts(&self) -> Counts {
        Counts {
            turns: self.turns,
            looked_at: self.engine.segments_looked_at(),
            calls: self.device.calls(),
            stats: self.engine.stats(),
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random.below(n)
    }

    /// Does once what a server's threads do repeatedly: commits, runs a turn of the cleaner, and
    /// serves reads.
    fn turn(&mut self) {
        let (began, locks) = (thread_cpu(), locks_taken());
        let (looked_at, read) = (self.engine.segments_looked_at(), self.device.calls().bytes_read);
        let joined = self.engine.joined_pages();
        self.session.tick(self.now);
        let before_commit = locks_taken();
        self.engine.commit();
        let commits = &mut self.turn.commits;
        commits.locks += locks_taken() - before_commit;
        commits.looked_at += self.engine.segments_looked_at() - looked_at;
        commits.read += self.device.calls().bytes_read - read;
        self.engine.clean(&mut self.cleaner);
        self.engine.serve_reads();
        self.session.tick(self.now);
        self.turns += 1;
        let took = cpu_since(began);
        let turn = &mut self.turn;
        turn.locks += locks_taken() - locks;
        let longest = match self.engine.joined_pages() > joined {
            true => &mut turn.longest_joining,
            false => &mut turn.longest,
        };
        *longest = took.max(*longest);
        turn.most_looked_at = turn.most_looked_at.max(self.engine.segments_looked_at() - looked_at);
    }

    fn call<T>(&mut self, call: impl Fn(&Session) -> Outcome<T>) -> Result<T> {
        loop {
            match call(&self.session) {
                Outcome::Ready(answer) | Outcome::AfterCommit(answer, _) => return Ok(answer),
                Outcome::Refused(refusal) => {
                    return Err(Error::Void(format!("the engine refuses: {refusal:?}")));
                }
                Outcome::NeedsRead | Outcome::NeedsSpace => self.turn(),
            }
        }
    }

    fn set(&mut self, key: &str, value: &[u8], expiry: Expiry) -> Result<()> {
        self.call(|session| {
            session.store(&session.key(key.as_bytes()), Store::set(value, 0, expiry)).map(drop)
        })
    }

    fn delete(&mut self, key: &str) -> Result<()> {
        self.call(|session| {
            session.delete(&session.key(key.as_bytes()), &Delete::default()).map(drop)
        })
    }

    fn is_there(&mut self, key: &str) -> Result<bool> {
        self.call(|session| session.get(&session.key(key.as_bytes())).map(|item| item.is_some()))
    }

    /// Fills the store with cold items, except for 1/`FREE_SHARE` of its segments. Returns the
    /// number of items.
    fn fill(&mut self, segments: u32) -> Result<u64> {
        let value = vec![b'c'; COLD_VALUE];
        let segments = u64::from(segments);
        let items = (segments - segments / FREE_SHARE) * 2;
        for item in 0..items {
            self.set(&format!("cold{item}"), &value, Expiry::NEVER)?;
            if item % 8 == 0 {
                self.turn();
            }
        }
        self.turn();
        Ok(items)
    }

    /// Sends requests. Of 100 requests, on average `cold_deletes` delete a cold item and
    /// 50 − `cold_deletes` set hot items that expire. The others get or delete hot items.
    fn serve(&mut self, requests: u64, cold_deletes: u8, cold: u64) -> Result<()> {
        let value = [b'h'; HOT_VALUE];
        for request in 0..requests {
            if request % PER_SECOND == 0 {
                self.now += 1;
            }
            if request % PER_TURN == 0 {
                self.turn();
            }
            let key = format!("hot{}", self.below(HOT_KEYS));
            match self.below(100) {
                draw if draw < cold_deletes.into() => {
                    // Deletes cold items in the order in which they were stored. The engine reads
                    // an item before it deletes it, so only items that the device never forgets are
                    // deleted.
                    let read = kept_items(cold) / READ_SHARE;
                    let item = read + self.deleted % (kept_items(cold) - read);
                    self.deleted += 1;
                    self.delete(&format!("cold{item}"))?;
                }
                draw if draw < 50 => {
                    self.set(&key, &value, Expiry::at(self.now + HOT_TTL))?;
                }
                draw if draw < 60 => self.delete(&key)?,
                _ => drop(self.is_there(&key)?),
            }
        }
        Ok(())
    }

    /// Measures the cost of [`Engine::stats`]. Returns the number of segments that the engine looks
    /// at, the processor time in µs, and the number of locks, each per call.
    fn scrape(&mut self) -> [f64; 3] {
        self.turn();
        let (before, locks) = (self.engine.segments_looked_at(), locks_taken());
        let began = thread_cpu();
        for _ in 0..SCRAPES {
            std::hint::black_box(self.engine.stats());
        }
        let took = cpu_since(began).as_secs_f64() * 1e6;
        let looked_at = self.engine.segments_looked_at() - before;
        let locks = locks_taken() - locks;
        [looked_at as f64, took, locks as f64].map(|work| work / SCRAPES as f64)
    }

    /// Measures gets of cold items. Returns the device reads, the bytes read and the locks, each
    /// per get.
    fn look_up(&mut self, cold: u64) -> Result<[f64; 3]> {
        let items = kept_items(cold) / READ_SHARE;
        let (before, locks) = (self.device.calls(), locks_taken());
        let mut found = 0;
        for _ in 0..LOOK_UPS {
            let item = self.below(items);
            found += u64::from(self.is_there(&format!("cold{item}"))?);
        }
        let (after, locks) = (self.device.calls(), locks_taken() - locks);
        if found < LOOK_UPS {
            return Err(Error::Void(format!("{found} of {LOOK_UPS} cold items were found")));
        }
        let work = [after.reads - before.reads, after.bytes_read - before.bytes_read, locks];
        Ok(work.map(|work| work as f64 / LOOK_UPS as f64))
    }
}

impl World {
    /// Drops the engine without a clean stop, as in a crash. Then measures a start on the same
    /// device.
    fn start_again(self, segments: u32) -> Result<StartRow> {
        let World { device, engine, session, cleaner, .. } = self;
        drop((session, cleaner, engine));
        device.let_start();
        let (before, began) = (device.calls(), Instant::now());
        let engine = open(&device, memory(segments))?;
        let (after, took) = (device.calls(), began.elapsed());
        let sum = |kinds: &[PageKind]| {
            let reads = kinds.iter().map(|&kind| after.of(kind, &before));
            reads.fold((0, 0), |sum, (reads, bytes)| (sum.0 + reads, sum.1 + bytes))
        };
        let (survey, survey_bytes) = sum(&[PageKind::Meta, PageKind::Beginning]);
        let (others, other_bytes) = sum(&[PageKind::Middle, PageKind::End]);
        let per_segment = |work: u64| work as f64 / f64::from(segments);
        Ok(StartRow {
            seconds: took.as_secs_f64(),
            items: engine.stats().items,
            survey_reads_per_segment: per_segment(survey),
            survey_bytes_per_segment: per_segment(survey_bytes),
            other_reads_per_segment: per_segment(others),
            other_bytes_per_segment: per_segment(other_bytes),
        })
    }
}

fn table(rows: &[GrowthRow]) -> Table {
    type Column = (&'static str, fn(&GrowthRow) -> f64);
    const FIGURES: [Column; 22] = [
        ("segments looked at per turn", |row| row.looked_at_per_turn),
        ("locks taken per turn", |row| row.locks_per_turn),
        ("segments looked at per commit", |row| row.looked_at_per_commit),
        ("bytes read per commit", |row| row.read_per_commit),
        ("locks taken per commit", |row| row.locks_per_commit),
        ("segments looked at per freed one", |row| row.looked_at_per_freed),
        ("bytes read per freed segment", |row| row.read_per_freed_segment),
        ("bytes written per freed segment", |row| row.written_per_freed_segment),
        ("bytes of dead maps per byte freed", |row| row.map_bytes_per_freed_byte),
        ("segments looked at per scrape", |row| row.looked_at_per_scrape),
        ("locks taken per scrape", |row| row.locks_per_scrape),
        ("reads per look-up of a cold item", |row| row.reads_per_look_up),
        ("bytes read per such look-up", |row| row.bytes_per_look_up),
        ("locks taken per such look-up, its turn included", |row| row.locks_per_look_up),
        ("µs per request, background work included", |row| row.us_per_request),
        ("most segments looked at in a turn", |row| row.most_looked_at_in_turn as f64),
        ("µs of the longest turn without a huge page", |row| row.longest_turn_us),
        ("µs per scrape", |row| row.us_per_scrape),
        ("a start: reads per segment to find what is there", |row| {
            row.start.survey_reads_per_segment
        }),
        ("bytes of these", |row| row.start.survey_bytes_per_segment),
        ("then reads per segment to fill the index", |row| row.start.other_reads_per_segment),
        ("bytes of these", |row| row.start.other_bytes_per_segment),
    ];
    let mut heads = vec!["".to_owned()];
    heads.extend(rows.iter().map(|row| format!("{} segments", row.segments)));
    heads.push("flat within 2 times".to_owned());
    let mut lines: Vec<Vec<String>> = FIGURES
        .iter()
        .map(|(name, figure)| {
            let figures: Vec<f64> = rows.iter().map(figure).collect();
            let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
            let most = figures.iter().copied().fold(0.0, f64::max);
            let mut line = vec![(*name).to_owned()];
            line.extend(figures.iter().map(|figure| format!("{figure:.3}")));
            // The smallest figure counts as at least 1/1000, so that costs near 0 count as flat.
            // For example, 1/1000 is one segment looked at in `SCRAPES` calls.
            let flat = most <= FLAT * least.max(0.001);
            line.push(if flat { "yes" } else { "NO" }.to_owned());
            line
        })
        .collect();
    let others: [Column; 5] = [
        ("µs of the longest turn with a huge page", |row| row.longest_joining_turn_us),
        ("bytes of memory per segment, charged before anything is stored", |row| {
            row.tables_per_segment
        }),
        ("bytes of memory per segment, frames and index included", |row| row.memory_per_segment),
        ("reads of cold segments for keys that look alike", |row| row.forgotten_reads as f64),
        ("seconds of a start on a device that takes no time", |row| row.start.seconds),
    ];
    for (name, figure) in others {
        let mut line = vec![name.to_owned()];
        line.extend(rows.iter().map(|row| format!("{:.1}", figure(row))));
        line.push(String::new());
        lines.push(line);
    }
    Table { header: heads, ..Table::new(1, &[], lines) }
}
