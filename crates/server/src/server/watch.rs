//! A thread that does background work once a second in place of the workers. The thread reads the
//! counters of trouble for clients, such as refused writes. It logs each kind with its count and
//! advice, at most once per [`SILENCE`]. So no worker waits for a slow log. The thread also returns
//! freed memory to the kernel.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use larder_engine::{LaneState, Totals};
use tracing::{error, info, warn};

use super::running::Running;
use crate::process;
use crate::stats::NetTotals;

/// Interval between checks of the server.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time after a log line during which the same trouble is not logged again.
const SILENCE: Duration = Duration::from_secs(60);
/// Time after a refused write during which `/readyz` reports that the server refuses writes.
const REFUSING: Duration = Duration::from_secs(5);

/// Growth of the uncharged memory, in bytes, after which this thread makes the allocator return
/// freed memory to the kernel. Uncharged memory is resident memory that the budget does not count.
const UNCHARGED: u64 = 8 << 20;

/// A handle that ends the thread.
#[derive(Debug)]
pub(super) struct Watch {
    end: Sender<()>,
    thread: JoinHandle<()>,
}

impl Watch {
    pub(super) fn start(running: Arc<Running>) -> std::io::Result<Watch> {
        let (end, ended) = mpsc::channel();
        let watch = move || {
            let moves = Moves { lanes: running.engine.lanes(), moving: false };
            let mut watcher = Watcher { moves, ..Watcher::default() };
            watcher.look_at_memory(&running, Instant::now());
            while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                watcher.look_at(&running, Instant::now());
            }
            watcher.look_at(&running, Instant::now());
        };
        let thread = std::thread::Builder::new().name("watch".to_owned()).spawn(watch)?;
        Ok(Watch { end, thread })
    }

    pub(super) fn stop(self) {
        // The send fails if the thread has already ended.
        let _ = self.end.send(());
        let _ = self.thread.join();
    }
}

/// The state of the server that the thread last saw and logged, to detect changes.
#[derive(Default)]
struct Watcher {
    failing: Option<Instant>,
    moves: Moves,
    trouble: Vec<Trouble>,
    refused: u64,
    refused_at: Option<Instant>,
    heap: Heap,
}

impl Watcher {
    fn look_at(&mut self, running: &Running, now: Instant) {
        let (totals, net) = (running.engine.totals(), running.net_totals_ever());
        if std::mem::replace(&mut self.refused, totals.store_no_memory) != totals.store_no_memory {
            self.refused_at = Some(now);
        }
        let refuses = self.refused_at.is_some_and(|at| now.duration_since(at) < REFUSING);
        // The flag is set before the log lines are written, so that the admin page already shows
        // the state that a reader finds in the log.
        running.refusing.store(refuses, Relaxed);
        if self.trouble.is_empty() {
            self.trouble = KINDS.iter().map(Trouble::new).collect();
        }
        for trouble in &mut self.trouble {
            if let Some(count) = trouble.news(&totals, &net, now) {
                let TroubleKind { event, advice, .. } = *trouble.kind;
                warn!(event, count, advice);
            }
        }
        self.look_at_memory(running, now);
        if running.settings().has_store() {
            self.look_at_store(running);
        }
    }

    fn look_at_memory(&mut self, running: &Running, now: Instant) {
        if let Some(context) = running.context() {
            context.arrivals.buffers.trim(now);
        }
        let uncharged = || process::resident_bytes().saturating_sub(running.engine.memory_used());
        if self.heap.has_grown(uncharged()) {
            process::give_back_heap();
            self.heap.note_given_back(uncharged());
        }
    }

    fn look_at_store(&mut self, running: &Running) {
        match (running.store_failure(), self.failing) {
            (Some(reason), None) => {
                error!(event = "store_failing", reason, writes = "refused");
                self.failing = Some(Instant::now());
            }
            (None, Some(since)) => {
                info!(event = "store_healed", after_s = since.elapsed().as_secs());
                self.failing = None;
            }
            _ => {}
        }
        self.moves.look_at(running.engine.lanes());
    }
}

/// The smallest uncharged memory since the allocator last returned memory, in bytes.
#[derive(Default)]
struct Heap {
    least: Option<u64>,
}

impl Heap {
    /// Returns true if the allocator probably keeps much freed memory. `uncharged` is the present
    /// uncharged memory in bytes.
    fn has_grown(&mut self, uncharged: u64) -> bool {
        let least = self.least.map_or(uncharged, |least| least.min(uncharged));
        self.least = Some(least);
        uncharged - least >= UNCHARGED
    }

    /// Notes that `uncharged` bytes are left after the allocator has returned what it could. Only
    /// further growth makes [`has_grown`](Self::has_grown) true again.
    fn note_given_back(&mut self, uncharged: u64) {
        self.least = Some(uncharged);
    }
}

/// A kind of trouble for clients, with its log event, its advice and its counter.
struct TroubleKind {
    event: &'static str,
    advice: &'static str,
    count: fn(&Totals, &NetTotals) -> u64,
}

const KINDS: &[TroubleKind] = &[
    TroubleKind {
        event: "writes_refused",
        advice: "there is no room: raise --memory, or the size of --store if there is one, delete items, \
                 or let --when-full evict",
        count: |totals, _| totals.store_no_memory,
    },
    TroubleKind {
        event: "items_too_large",
        advice: "raise --max-item-size, or store less under one key",
        count: |totals, _| totals.store_too_large,
    },
    TroubleKind {
        event: "limiters_evicted",
        advice: "rate limiters were evicted, so their clients have the whole budget again: raise --memory",
        count: |totals, _| totals.evicted_limiters,
    },
    TroubleKind {
        event: "connections_rejected",
        advice: "raise --max-connections, or have clients share connections",
        count: |_, net| net.loops.rejected_connections,
    },
    TroubleKind {
        event: "accepts_failed",
        advice: "the process has no descriptor or memory left for a connection: raise the limit of open \
                 files (ulimit -n, LimitNOFILE=) or lower --max-connections",
        count: |_, net| net.loops.accept_errors,
    },
    TroubleKind {
        event: "buffers_refused",
        advice: "connections were closed for want of memory for their buffers: raise --memory, or have \
                 clients read their replies",
        count: |_, net| net.loops.refused_buffers,
    },
    TroubleKind {
        event: "http_on_data_port",
        advice: "a browser, proxy or health check speaks HTTP to the data port: point it at --admin",
        count: |_, net| net.http,
    },
];

/// The state of one kind of trouble: its count at the last log line, and the time of that line.
struct Trouble {
    kind: &'static TroubleKind,
    told: u64,
    told_at: Option<Instant>,
}

impl Trouble {
    fn new(kind: &'static TroubleKind) -> Trouble {
        Trouble { kind, told: 0, told_at: None }
    }

    /// Returns how often this trouble has occurred since its last log line. Returns `None` if it
    /// has not, or if that log line is less than [`SILENCE`] old.
    fn news(&mut self, totals: &Totals, net: &NetTotals, now: Instant) -> Option<u64> {
        let count = (self.kind.count)(totals, net);
        let silent = self.told_at.is_some_and(|at| now.duration_since(at) < SILENCE);
        if count == self.told || silent {
            return None;
        }
        self.told_at = Some(now);
        Some(count.wrapping_sub(std::mem::replace(&mut self.told, count)))
    }
}

/// The state of the lanes at the last check. A comparison shows if partitions move, if a device has
/// grown, and if the drain of a device has ended.
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
        for lane in &self.lanes {
            let of = |other: &&LaneState| other.number == lane.number;
            if before.iter().find(of).is_some_and(|other| other.capacity < lane.capacity) {
                let device = lane.lower.as_ref().unwrap_or(&lane.name);
                info!(event = "store_grown", device, lane_bytes = lane.capacity);
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_memory_is_returned_once() {
        let mut heap = Heap::default();
        let mib = |n: u64| n << 20;
        assert!(!heap.has_grown(mib(20)) && !heap.has_grown(mib(27)));
        assert!(heap.has_grown(mib(28)));
        // The allocator returns 3 of the 28 MiB, so 25 MiB are left. Later growth must be measured
        // from these 25 MiB, or from a lower value that `has_grown` has been given since then.
        heap.note_given_back(mib(25));
        assert!(!heap.has_grown(mib(30)) && !heap.has_grown(mib(3)) && !heap.has_grown(mib(10)));
        assert!(heap.has_grown(mib(11)));
    }

    #[test]
    fn trouble_is_logged_at_once_and_then_at_intervals() {
        let mut trouble = Trouble::new(&KINDS[0]);
        let start = Instant::now();
        let refused = |count| Totals { store_no_memory: count, ..Totals::default() };
        let mut news = |count, seconds| {
            let now = start + Duration::from_secs(seconds);
            trouble.news(&refused(count), &NetTotals::default(), now)
        };
        assert_eq!(news(0, 0), None);
        assert_eq!(news(3, 1), Some(3));
        assert_eq!(news(3000, 2), None);
        assert_eq!(news(3001, 60), None);
        assert_eq!(news(3001, 61), Some(2998));
        assert_eq!(news(3001, 200), None);
        assert_eq!(news(3002, 201), Some(1));
    }
}
