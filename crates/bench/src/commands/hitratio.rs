//! `larder bench hitratio`: miss ratios at equal *resident* memory. Servers count their memory
//! limits differently: one leaves out its hash table, another its connections. An operator pays for
//! the memory that the kernel counts. So a peer's limit is adjusted until its resident memory
//! equals Larder's.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::output::{JsonFile, Table, megabytes};
use super::replay::Options;
use crate::launch::{Allowance, Program};
use crate::machine::Machine;
use crate::replay::ReplayOutcome;
use crate::{Error, Result, complain, say};

/// The servers, the traces and the memory.
#[derive(Clone, Debug, Args)]
pub struct HitratioArguments {
    /// Another server to measure: [NAME=]PATH and its options, as one quoted argument; repeatable
    #[arg(long = "peer", value_name = "PATH", required = true)]
    peers: Vec<String>,
    /// Larder executable to measure, instead of this one
    #[arg(long, value_name = "PATH")]
    larder: Option<PathBuf>,
    /// Server to measure in place of Larder, in the form of --peer; the other servers get as much
    /// resident memory as it uses
    #[arg(long, value_name = "PATH", conflicts_with = "larder")]
    reference: Option<String>,
    /// Traces, separated by commas: files or built-in ones, as in `larder bench replay`
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "zipf:0.8,zipf:0.99,zipf:1.2,scan:0.99,ttl:0.99"
    )]
    traces: Vec<String>,
    /// Memory limit of Larder, or of --reference, in MiB
    #[arg(long, default_value_t = 64)]
    memory: u64,
    /// Largest difference in resident memory that counts as equal, as a fraction
    #[arg(long, default_value_t = 0.02)]
    tolerance: f64,
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    json: JsonFile,
}

#[derive(Debug, Serialize)]
struct HitratioRow {
    trace: String,
    server: String,
    version: String,
    memory_limit_mib: u64,
    rss: u64,
    outcome: ReplayOutcome,
    miss_ratio: f64,
    /// The miss ratio, divided by that of Larder or of the `--reference` server. Above 1, the peer
    /// misses more.
    relative_misses: f64,
    /// True if the peer's resident memory equals Larder's within the tolerance.
    equal: bool,
}

/// The largest number of memory limits to try for one peer and trace.
const ATTEMPTS: usize = 9;

impl HitratioArguments {
    pub(super) fn run(self) -> Result<()> {
        let larder = match &self.reference {
            Some(program) => Program::peer(program)?,
            None => Program::larder(self.larder.as_deref(), "auto")?,
        };
        let peers =
            self.peers.iter().map(|peer| Program::peer(peer)).collect::<Result<Vec<_>>>()?;
        let mut rows = Vec::new();
        for trace in &self.traces {
            complain!("{trace}: {}", larder.name);
            let mut own = self.measure(&larder, trace, self.memory)?;
            own.equal = true;
            let (rss, ratio) = (own.rss, own.miss_ratio);
            rows.push(own);
            for peer in &peers {
                complain!("{trace}: {}", peer.name);
                let mut row = self.equal_memory(peer, trace, rss)?;
                row.relative_misses = row.miss_ratio / ratio.max(f64::MIN_POSITIVE);
                rows.push(row);
            }
        }
        say!("{}", Machine::here().line());
        say!("one connection, a get and a set after each miss, RAM only\n");
        let table = Table::of(
            2,
            &rows,
            &[
                ("trace", &|row: &HitratioRow| row.trace.clone()),
                ("server", &|row| row.server.clone()),
                ("miss ratio", &|row| format!("{:.4}", row.miss_ratio)),
                ("misses relative", &|row| format!("{:.3}", row.relative_misses)),
                ("RSS", &|row| megabytes(row.rss)),
                ("limit MiB", &|row| row.memory_limit_mib.to_string()),
                ("equal RSS", &|row| if row.equal { "yes" } else { "NO" }.into()),
            ],
        );
        self.json.report(table, &rows)
    }

    /// Repeats the replay with other memory limits until the peer's resident memory equals `rss`,
    /// within the tolerance. `rss` is the resident memory of Larder or of the `--reference` server.
    /// Returns the attempt whose resident memory is nearest to `rss`.
    fn equal_memory(&self, peer: &Program, trace: &str, rss: u64) -> Result<HitratioRow> {
        let mut best: Option<HitratioRow> = None;
        let mut search = Search::from(self.memory);
        for _ in 0..ATTEMPTS {
            let limit = search.limit;
            let mut row = self.measure(peer, trace, limit)?;
            let error = row.rss as f64 / rss as f64 - 1.0;
            row.equal = error.abs() <= self.tolerance;
            complain!("  -m {limit}: RSS {} ({:+.1} %)", megabytes(row.rss), error * 100.0);
            let (equal, taken) = (row.equal, row.rss);
            let distance = |row: &HitratioRow| row.rss.abs_diff(rss);
            if best.as_ref().is_none_or(|best| distance(&row) < distance(best)) {
                best = Some(row);
            }
            if equal || !search.go_on(taken, rss) {
                break;
            }
        }
        best.ok_or_else(|| Error::server("no limit could be tried"))
    }

    fn measure(&self, program: &Program, trace: &str, limit: u64) -> Result<HitratioRow> {
        let server = program.start(Allowance { memory: limit, threads: 1, cpu: None })?;
        let outcome = self.options.replay(trace, &server.address)?;
        let rss = server.probe().sample()?.rss;
        Ok(HitratioRow {
            trace: trace.to_owned(),
            server: program.name.clone(),
            version: server.version.clone(),
            memory_limit_mib: limit,
            rss,
            miss_ratio: outcome.miss_ratio(),
            outcome,
            relative_misses: 1.0,
            equal: false,
        })
    }
}

/// A search for the memory limit at which a server's resident memory reaches a given size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    /// The next limit to try, in MiB.
    pub(crate) limit: u64,
    /// The largest limit so far with too little resident memory, in MiB.
    below: Option<u64>,
    /// The smallest limit so far with too much resident memory, in MiB.
    above: Option<u64>,
    /// Resident bytes of the last attempt.
    last: Option<u64>,
}

impl Search {
    /// Returns a search whose first attempt has this limit in MiB.
    pub(crate) fn from(limit: u64) -> Search {
        Search { limit, below: None, above: None, last: None }
    }

    /// Chooses the next limit after an attempt that had `rss` resident bytes. Returns false if
    /// there is no other limit to try.
    pub(crate) fn go_on(&mut self, rss: u64, wanted: u64) -> bool {
        // If the last increase of the limit has added at most 1 % of resident memory, the whole
        // trace fits. Then no higher limit adds any.
        let limit_still_binds = self.last.is_none_or(|last| rss > last + last / 100);
        if rss < wanted && self.above.is_none() && !limit_still_binds {
            return false;
        }
        self.last = Some(rss);
        if rss < wanted {
            self.below = Some(self.limit.max(self.below.unwrap_or(0)));
        } else {
            self.above = Some(self.limit.min(self.above.unwrap_or(u64::MAX)));
        }
        // Memory that the limit does not count (code, tables, buffers) is the same at every limit.
        // So the next limit is this limit plus the missing bytes. The sum must lie between the
        // limits that were too low and those that were too high. Otherwise the next limit is the
        // middle between them.
        let difference = (wanted as f64 - rss as f64) / f64::from(1 << 20);
        let direct = (self.limit as f64 + difference).round().max(2.0) as u64;
        let (low, high) = (self.below.unwrap_or(1), self.above.unwrap_or(direct.saturating_add(1)));
        let tried = self.limit;
        self.limit =
            if low < direct && direct < high { direct } else { low + high.saturating_sub(low) / 2 };
        self.limit != tried && self.limit > low && self.limit < high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches with a server whose resident memory is a function of its limit.
    fn search(start: u64, wanted: u64, resident: impl Fn(u64) -> u64) -> (u64, usize) {
        let mut search = Search::from(start);
        for attempt in 1..=100 {
            let rss = resident(search.limit) << 20;
            if rss == wanted << 20 || !search.go_on(rss, wanted << 20) {
                return (search.limit, attempt);
            }
        }
        panic!("the search does not end");
    }

    #[test]
    fn a_constant_above_the_limit_is_found_at_once() {
        assert_eq!(search(64, 80, |limit| limit + 26), (54, 2));
        assert_eq!(search(64, 80, |limit| limit + 16), (64, 1));
    }

    #[test]
    fn memory_that_grows_faster_than_the_limit_is_found_by_halving() {
        let (limit, attempts) = search(64, 80, |limit| 4 * limit);
        assert_eq!(limit, 20);
        assert!(attempts <= ATTEMPTS, "{attempts}");
    }

    #[test]
    fn a_search_for_an_unreachable_size_ends() {
        search(64, 80, |_| 10);
        search(64, 80, |_| 100);
    }
}
