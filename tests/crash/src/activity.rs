//! The background work of a server, as its statistics show it. The test uses it to kill a server in
//! the middle of such work.

use std::io;
use std::time::{Duration, Instant};

use crate::clock;
use crate::server::Server;

/// Interval between two queries of the statistics.
const LOOK: Duration = Duration::from_millis(4);

/// The background work that the end of a round should interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Partitions move between devices.
    Drain,
    /// Items are evicted to make room.
    Evict,
    /// The cleaner moves records to the lower devices.
    Cool,
}

/// The age of acknowledged writes that, as the server says, a crash may lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unsynced {
    /// The monotonic clock's time in microseconds at which the server was asked.
    asked: u64,
    /// The age of the oldest of these writes at that time, or more.
    pub(crate) age: Duration,
}

impl Unsynced {
    /// Returns the monotonic clock's time in microseconds before which, as the server says,
    /// everything acknowledged is durable.
    pub(crate) fn synced_until(self) -> u64 {
        self.asked.saturating_sub(self.age.as_micros() as u64)
    }
}

/// The statistics that show background work and unsynced writes, from one query.
#[derive(Debug, PartialEq, Eq)]
struct Look {
    rows: Vec<(String, String)>,
    unsynced: Unsynced,
    moved: u64,
    evicted: u64,
    /// The number of partitions of each lane.
    partitions: Vec<(String, String)>,
    draining: bool,
    has_lower: bool,
}

impl Look {
    fn at(server: &Server) -> io::Result<Look> {
        let asked = clock::now();
        let rows = server.stats()?;
        let number = |name: &str| {
            let row = rows.iter().find(|(row, _)| row == name);
            row.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
        };
        let of_lanes = |what: &'static str| {
            rows.iter()
                .filter(move |(row, _)| row.starts_with("larder_lane_") && row.ends_with(what))
        };
        Ok(Look {
            moved: number("larder_moved_items"),
            evicted: number("evictions"),
            partitions: of_lanes("_partitions").cloned().collect(),
            draining: of_lanes("_state").any(|(_, state)| state == "draining"),
            has_lower: of_lanes("_lower_used").any(|(_, used)| used != "0"),
            unsynced: Unsynced {
                asked,
                // The server rounds the row down to whole milliseconds.
                age: Duration::from_millis(number("larder_unsynced_ms") + 1),
            },
            rows,
        })
    }
}

/// The background work between the last two queries.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Activity {
    /// The cleaner moved items.
    pub(crate) cleaning: bool,
    /// The cleaner moved items, and a lower device is in use. The test then assumes that some of
    /// these items went to a lower device.
    pub(crate) cooling: bool,
    pub(crate) evicting: bool,
    /// A device was being drained, or partitions moved to another lane.
    pub(crate) draining: bool,
}

impl Activity {
    fn between(before: &Look, now: &Look) -> Activity {
        let cleaning = before.moved != now.moved;
        Activity {
            cleaning,
            cooling: cleaning && now.has_lower,
            evicting: before.evicted != now.evicted,
            draining: now.draining || before.partitions != now.partitions,
        }
    }

    fn is_at(self, work: Work) -> bool {
        match work {
            Work::Drain => self.draining,
            Work::Evict => self.evicting,
            Work::Cool => self.cooling,
        }
    }
}

/// What the statistics showed just before the test killed the server or cut its power.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) activity: Activity,
    /// Number of items that the server has evicted since its start.
    pub(crate) evicted: u64,
    /// All rows of the statistics.
    pub(crate) rows: Vec<(String, String)>,
    pub(crate) unsynced: Unsynced,
}

/// Queries the statistics until the server does `work`, but for at most `patience`.
pub(crate) fn watch(server: &Server, work: Work, patience: Duration) -> io::Result<Watched> {
    let begun = Instant::now();
    let mut before = Look::at(server)?;
    loop {
        std::thread::sleep(LOOK);
        let now = Look::at(server)?;
        let activity = Activity::between(&before, &now);
        if activity.is_at(work) || begun.elapsed() >= patience {
            let Look { evicted, rows, unsynced, .. } = now;
            return Ok(Watched { activity, evicted, rows, unsynced });
        }
        before = now;
    }
}

/// Returns the age of what the server calls unsynced.
pub(crate) fn unsynced(server: &Server) -> io::Result<Unsynced> {
    Ok(Look::at(server)?.unsynced)
}

/// Number of rounds whose end interrupted each kind of background work.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Interrupted {
    pub(crate) cleaning: u32,
    pub(crate) cooling: u32,
    pub(crate) evicting: u32,
    pub(crate) draining: u32,
    /// Number of items evicted in all rounds.
    pub(crate) evicted: u64,
}

impl Interrupted {
    pub(crate) fn note(&mut self, watched: &Watched) {
        let Activity { cleaning, cooling, evicting, draining } = watched.activity;
        self.cleaning += u32::from(cleaning);
        self.cooling += u32::from(cooling);
        self.evicting += u32::from(evicting);
        self.draining += u32::from(draining);
        self.evicted += watched.evicted;
    }
}
