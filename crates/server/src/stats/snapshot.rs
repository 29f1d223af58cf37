//! A snapshot of a server's figures. All metrics are read from a snapshot. `stats/mod.rs` says for
//! which figures it takes locks.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use larder_engine::{Health, LaneState, Stats, StoreHistograms, Totals};

use super::totals::NetTotals;
use crate::latency::LatencyTotals;
use crate::net::LoopTotals;
use crate::policies::Policies;
use crate::process::{self, Usage};
use crate::server::Running;
use crate::settings::Settings;

/// The figures of a server at one moment.
pub(crate) struct Snapshot<'r> {
    pub(super) running: &'r Running,
    pub(super) settings: Arc<Settings>,
    /// The engine's figures, summed over all lanes.
    pub(super) engine: Stats,
    lane_stats: Vec<Stats>,
    /// The states of the store's lanes; empty without a store.
    lane_states: Vec<LaneState>,
    /// The histograms of the store's lanes, read on first use.
    store_histograms: OnceCell<Vec<StoreHistograms>>,
    pub(super) net: NetTotals,
    pub(super) policies: Arc<Policies>,
    /// The latencies of commands; `None` if they are not measured.
    pub(super) latencies: Option<LatencyTotals>,
    pub(super) usage: Usage,
    pub(super) uptime: Duration,
    /// The reason why clients should not use the server now, if there is one.
    pub(super) readiness: Result<(), Cow<'static, str>>,
}

/// A lane of a store.
pub(super) struct LaneView<'s> {
    pub(super) state: &'s LaneState,
    pub(super) stats: &'s Stats,
}

impl<'r> Snapshot<'r> {
    /// Reads the figures for `stats`, which counts since the last reset.
    pub(crate) fn since_reset(running: &'r Running) -> Self {
        Snapshot::new(running, running.net_totals(), running.latencies())
    }

    /// Reads the figures for `/metrics`. `stats reset` sets the counters of the engine and of the
    /// policies to 0, which Prometheus treats as a restart. The latencies and the counters of the
    /// event loops are those since the start, also after `stats reset`.
    pub(crate) fn ever(running: &'r Running) -> Self {
        Snapshot::new(running, running.net_totals_ever(), running.latencies_ever())
    }

    fn new(running: &'r Running, net: NetTotals, latencies: Option<LatencyTotals>) -> Self {
        let settings = running.settings();
        let lane_stats = running.engine.lane_stats();
        let has_store = settings.has_store();
        Snapshot {
            running,
            engine: Stats::sum(&lane_stats),
            lane_states: if has_store { running.engine.lanes() } else { Vec::new() },
            lane_stats,
            store_histograms: OnceCell::new(),
            net,
            policies: running.policies(),
            latencies,
            usage: process::usage(),
            uptime: running.clock.uptime(),
            readiness: running.readiness(),
            settings,
        }
    }

    pub(super) fn totals(&self) -> &Totals {
        &self.engine.totals
    }

    pub(super) fn loops(&self) -> &LoopTotals {
        &self.net.loops
    }

    pub(super) fn lanes(&self) -> impl Iterator<Item = LaneView<'_>> {
        let pairs = self.lane_states.iter().zip(&self.lane_stats);
        pairs.map(|(state, stats)| LaneView { state, stats })
    }

    /// Returns the histograms of the lanes of a store, in the order of [`Snapshot::lanes`].
    pub(super) fn store_histograms(&self) -> &[StoreHistograms] {
        self.store_histograms.get_or_init(|| self.running.engine.store_histograms())
    }

    /// Returns `value` if the server has a store.
    pub(super) fn with_store<T>(&self, value: T) -> Option<T> {
        self.settings.has_store().then_some(value)
    }

    /// Returns false if the server accepts no new connections.
    pub(super) fn accepts(&self) -> bool {
        !self.running.draining.load(Relaxed)
    }
}

impl LaneView<'_> {
    pub(super) fn is_healthy(&self) -> bool {
        self.state.health == Health::Good
    }

    /// Returns the state of the lane in words.
    pub(super) fn words(&self) -> String {
        match &self.state.health {
            _ if self.state.drained => "drained".to_owned(),
            Health::Failing { reason } => format!("failing: {reason}"),
            Health::Good if self.state.draining => "draining".to_owned(),
            Health::Good => "ok".to_owned(),
        }
    }
}
