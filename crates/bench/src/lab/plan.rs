//! The sizes of the experiments at each scale.

use std::time::Duration;

use clap::ValueEnum;

use crate::trace::TraceTotals;

/// How long the lab measures, and how much data the systems get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scale {
    /// All experiments within 25 minutes on two processors, with a few GB of disk
    Small,
    /// Longer measurements, and several times the data; many hours with all systems
    Medium,
    /// Up to 50 million keys, 3 minutes per measurement; an experiment may take a day with all
    /// systems
    Full,
}

impl Scale {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Scale::Small => "small",
            Scale::Medium => "medium",
            Scale::Full => "full",
        }
    }
}

/// The largest number of threads of a server.
const SERVER_THREADS: usize = 4;
/// The largest [`Plan::load_threads`]. The generator loads at most [`SERVER_THREADS`] server
/// threads.
const LOAD_THREADS: usize = 8;

/// The sizes of all experiments.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Number of rounds of an experiment, unless it uses `long_rounds` or always has one round. In
    /// each round, each system has one turn.
    pub(crate) rounds: usize,
    /// Number of rounds of slow experiments. A round of such an experiment takes a long time, for
    /// example because the lab stores much data before it measures.
    pub(crate) long_rounds: usize,
    /// Measured time per point, unless the experiment has its own time for the point.
    pub(crate) time: Duration,
    /// Warm-up before each point.
    pub(crate) warm_up: Duration,
    /// Number of threads of each server: one for each processor that the generator does not use, up
    /// to [`SERVER_THREADS`]. With more threads, some would be idle. They would sleep and wake up
    /// on the generator's processors, and take time from it.
    pub(crate) server_threads: usize,
    /// Number of generator threads, unless the experiment has its own number: a quarter of the
    /// processors, from 1 to [`LOAD_THREADS`], so that the generator is not the limit on large
    /// machines.
    pub(crate) load_threads: usize,
    pub(crate) counter: CounterSizes,
    pub(crate) persistence: PersistenceSizes,
    pub(crate) cliff: CliffSizes,
    pub(crate) converge: ConvergeSizes,
    pub(crate) restart: RestartSizes,
    pub(crate) hitratio: HitratioSizes,
}

#[derive(Clone, Debug)]
pub(crate) struct HitratioSizes {
    /// Memory limit of Larder in MiB. For each other system, the lab searches for a limit at which
    /// its resident memory equals Larder's.
    pub(crate) memory: u64,
    /// Number of different keys of a synthetic trace, without those of scans. The next field is the
    /// number of its requests.
    pub(crate) keys: u64,
    pub(crate) requests: u64,
    /// Recorded traces that are replayed in addition to the synthetic ones.
    pub(crate) recorded: Vec<Recorded>,
}

/// A recorded trace.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    /// The name of the trace's point in the report.
    pub(crate) name: &'static str,
    pub(crate) path: String,
    pub(crate) totals: TraceTotals,
}

#[derive(Clone, Debug)]
pub(crate) struct CounterSizes {
    /// Numbers of clients to measure with. In the case `blocking`, each client has a thread
    /// and a connection. In the case `event`, it has only a connection.
    pub(crate) clients: Vec<usize>,
    /// Numbers of connections to measure with, each with pipelines of 16.
    pub(crate) pipelined: Vec<usize>,
}

#[derive(Clone, Debug)]
pub(crate) struct PersistenceSizes {
    pub(crate) keys: u64,
    pub(crate) connections: usize,
    /// The longest time of the measured inserts. The remaining keys are stored afterwards, without
    /// measurement.
    pub(crate) insert: Duration,
    /// Duration of the case `timeline`, which records every second; zero leaves the case out.
    pub(crate) timeline: Duration,
    /// Memory limit of each server in MiB.
    pub(crate) memory: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct CliffSizes {
    pub(crate) keys: u64,
    pub(crate) value: usize,
    pub(crate) connections: usize,
    /// Memory limit in MiB of the servers that keep values on flash.
    pub(crate) memory: u64,
    /// Offered requests per second.
    pub(crate) rates: Vec<u32>,
    /// Requests per second of the load in the case `cloud`.
    pub(crate) cloud: u32,
    /// Requests per second of a separate connection in the case `cloud`. The lab records every
    /// latency of this connection, but not of the load.
    pub(crate) sampler: u32,
    pub(crate) cloud_time: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct ConvergeSizes {
    /// Memory limit in MiB of the case `fit`, which counts the items that fit.
    pub(crate) fit_memory: u64,
    /// Number of items of the case `read-ram`, all of which fit into memory.
    pub(crate) ram_keys: u64,
    /// Memory limit in MiB, and bytes of all values, of the cases that read from disk.
    pub(crate) disk_memory: u64,
    pub(crate) disk_bytes: u64,
    pub(crate) connections: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct RestartSizes {
    pub(crate) keys: Vec<u64>,
    /// Length of the measurement after the restart.
    pub(crate) after: Duration,
}

impl Plan {
    pub(crate) fn of(scale: Scale) -> Plan {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Plan::on(processors, scale)
    }

    fn on(processors: usize, scale: Scale) -> Plan {
        match scale {
            Scale::Small => Plan::small(processors),
            Scale::Medium => Plan::medium(processors),
            Scale::Full => Plan::full(processors),
        }
    }

    fn small(processors: usize) -> Plan {
        let seconds = Duration::from_secs_f64;
        let load_threads = (processors / 4).clamp(1, LOAD_THREADS);
        Plan {
            rounds: 2,
            long_rounds: 1,
            time: seconds(0.5),
            warm_up: seconds(0.1),
            server_threads: processors.saturating_sub(load_threads).clamp(1, SERVER_THREADS),
            load_threads,
            counter: CounterSizes { clients: vec![1, 4, 10], pipelined: vec![10] },
            persistence: PersistenceSizes {
                keys: 30_000,
                connections: 400,
                insert: seconds(1.0),
                timeline: seconds(3.0),
                memory: 512,
            },
            cliff: CliffSizes {
                keys: 200_000,
                value: 1000,
                connections: 200,
                memory: 64,
                rates: vec![5_000, 10_000, 20_000, 40_000, 80_000],
                cloud: 10_000,
                sampler: 500,
                cloud_time: seconds(2.0),
            },
            converge: ConvergeSizes {
                fit_memory: 128,
                ram_keys: 20_000,
                disk_memory: 48,
                disk_bytes: 144 << 20,
                connections: 32,
            },
            restart: RestartSizes { keys: vec![20_000], after: seconds(1.0) },
            hitratio: HitratioSizes {
                memory: 12,
                keys: 150_000,
                requests: 150_000,
                recorded: Vec::new(),
            },
        }
    }

    fn medium(processors: usize) -> Plan {
        let seconds = Duration::from_secs_f64;
        let small = Plan::small(processors);
        Plan {
            rounds: 3,
            long_rounds: 3,
            time: seconds(10.0),
            warm_up: seconds(2.0),
            counter: CounterSizes { clients: (1..=10).collect(), pipelined: vec![1, 2, 5, 10] },
            persistence: PersistenceSizes {
                keys: 5_000_000,
                insert: seconds(120.0),
                timeline: seconds(300.0),
                memory: 2048,
                ..small.persistence
            },
            cliff: CliffSizes {
                keys: 4_000_000,
                memory: 512,
                rates: vec![5_000, 10_000, 20_000, 30_000, 40_000, 60_000, 80_000, 120_000],
                cloud_time: seconds(30.0),
                ..small.cliff
            },
            converge: ConvergeSizes {
                fit_memory: 1024,
                ram_keys: 1_000_000,
                disk_memory: 512,
                disk_bytes: 4 << 30,
                ..small.converge
            },
            restart: RestartSizes { keys: vec![1_000_000, 5_000_000], after: seconds(60.0) },
            hitratio: HitratioSizes {
                memory: 64,
                keys: 1_000_000,
                requests: 5_000_000,
                recorded: Vec::new(),
            },
            ..small
        }
    }

    fn full(processors: usize) -> Plan {
        let seconds = Duration::from_secs_f64;
        let small = Plan::small(processors);
        Plan {
            rounds: 1,
            long_rounds: 1,
            time: seconds(180.0),
            warm_up: seconds(10.0),
            counter: CounterSizes { clients: (1..=10).collect(), pipelined: vec![1, 2, 5, 10] },
            persistence: PersistenceSizes {
                keys: 50_000_000,
                insert: Duration::MAX,
                timeline: seconds(600.0),
                memory: 12_000,
                ..small.persistence
            },
            cliff: CliffSizes {
                keys: 20_000_000,
                memory: 2048,
                rates: (1..=12).map(|step| step * 10_000).collect(),
                cloud_time: seconds(180.0),
                ..small.cliff
            },
            converge: ConvergeSizes {
                fit_memory: 8192,
                ram_keys: 5_000_000,
                disk_memory: 2048,
                disk_bytes: 20 << 30,
                ..small.converge
            },
            restart: RestartSizes {
                keys: vec![1_000_000, 10_000_000, 50_000_000],
                after: seconds(60.0),
            },
            hitratio: HitratioSizes {
                memory: 1024,
                keys: 16_000_000,
                requests: 80_000_000,
                recorded: Vec::new(),
            },
            ..small
        }
    }

    /// Sets [`Plan::time`].
    pub(crate) fn with_minutes(self, minutes: f64) -> Plan {
        Plan { time: Duration::from_secs_f64(minutes * 60.0), ..self }
    }

    /// Returns a line that says how many threads the servers and the generator have. The report
    /// shows it among the conditions of an experiment.
    pub(crate) fn threads(&self) -> String {
        format!(
            "server threads, where a server has such a setting: {}; generator threads: {}",
            self.server_threads, self.load_threads
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_follow_the_processors() {
        let threads = |processors| {
            let plan = Plan::on(processors, Scale::Small);
            (plan.server_threads, plan.load_threads)
        };
        assert_eq!([1, 2, 4, 7].map(threads), [(1, 1), (1, 1), (3, 1), (4, 1)]);
        assert_eq!([8, 32, 64].map(threads), [(4, 2), (4, 8), (4, 8)]);
        let condition = Plan::on(8, Scale::Full).threads();
        assert!(condition.ends_with("setting: 4; generator threads: 2"), "{condition}");
    }
}
