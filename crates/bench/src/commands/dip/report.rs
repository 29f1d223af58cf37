//! The results of `larder bench dip`, for people and for programs.

use crate::say;
use serde::Serialize;

use super::super::output::{Table, megabytes};
use super::cold::FreeingCost;
use super::steadiness::{DELIVERED_MIN, LATENCY_MAX, Steadiness, Verdict};
use crate::generator::Summary;
use crate::machine::Machine;

/// One round of one server.
#[derive(Debug, Serialize)]
pub(super) struct DipRun {
    pub(super) server: String,
    pub(super) version: String,
    pub(super) round: usize,
    /// The requests per second that the server reached in a closed loop, before the measurement;
    /// `None` if `--rate` was given.
    pub(super) maximum: Option<f64>,
    pub(super) rate: f64,
    pub(super) steadiness: Steadiness,
    /// The steadiness of a responder that only sends replies, at the same rate. It shows how much
    /// of the variation comes from the machine.
    pub(super) noise_steadiness: Steadiness,
    /// Size of the store in bytes; 0 if the server has no store.
    pub(super) store_bytes: u64,
    /// Bytes written during the measurement, divided by the store's size.
    pub(super) turnovers: f64,
    /// The cost of freeing segments, if the server reports it.
    pub(super) freeing: Option<FreeingCost>,
    pub(super) load: Summary,
    pub(super) noise: Summary,
}

/// The result of all rounds of one server.
#[derive(Debug, Serialize)]
pub(super) struct DipOutcome {
    pub(super) server: String,
    pub(super) verdict: Verdict,
    /// The verdict on the responder, which only sends replies, in the same rounds. If
    /// [`Verdict::holds`] is false here too, the machine was too noisy to judge the server.
    pub(super) noise: Verdict,
}

#[derive(Debug, Serialize)]
pub(super) struct DipReport {
    pub(super) setup: String,
    pub(super) outcomes: Vec<DipOutcome>,
    pub(super) runs: Vec<DipRun>,
}

impl DipOutcome {
    pub(super) fn of(server: &str, runs: &[DipRun]) -> DipOutcome {
        let verdict = |value: fn(&DipRun) -> Steadiness| {
            let mine = runs.iter().filter(|run| run.server == server);
            Verdict::of(&mine.map(value).collect::<Vec<_>>())
        };
        DipOutcome {
            server: server.to_owned(),
            verdict: verdict(|run| run.steadiness),
            noise: verdict(|run| run.noise_steadiness),
        }
    }

    /// Returns the verdict in words, and the figures that it rests on.
    pub(super) fn sentences(&self) -> (&'static str, String) {
        let (verdict, noise) = (&self.verdict, &self.noise);
        let holds = if verdict.holds { "holds" } else { "does not hold" };
        let figures = format!(
            "The worst second delivers {} of the median second (wanted: at least {DELIVERED_MIN}), its p99.9 \
             is {} times the median second's (wanted: at most {LATENCY_MAX}). The responder, which is this \
             machine's noise: {} and {}.",
            verdict.delivered_ratio.show(3),
            verdict.p999_ratio.show(1),
            noise.delivered_ratio.show(3),
            noise.p999_ratio.show(1)
        );
        (holds, figures)
    }
}

impl DipRun {
    /// Returns the facts of this run in one line.
    pub(super) fn line(&self) -> String {
        let maximum = self.maximum.map_or(String::new(), |maximum| {
            format!(" of {maximum:.0}/s that the closed loop reached")
        });
        let written = match (&self.load.server, self.store_bytes) {
            (Some(_), 1..) => format!(
                "; the store was written {:.1} times over ({} of {})",
                self.turnovers,
                megabytes(self.load.server.map_or(0, |server| server.written)),
                megabytes(self.store_bytes)
            ),
            _ => String::new(),
        };
        let hits =
            self.load.hit_ratio.map_or(String::new(), |hits| format!("; hit ratio {hits:.4}"));
        let freeing = self.freeing.map_or(String::new(), FreeingCost::line);
        let waits = format!(
            "; longest wait {:.1} ms (responder {:.1})",
            self.load.latency.max_us / 1000.0,
            self.noise.latency.max_us / 1000.0
        );
        format!("{:.0} requests/s{maximum}{waits}{written}{hits}{freeing}", self.rate)
    }

    fn cells(&self, name: &str, of: &Steadiness) -> Vec<String> {
        vec![
            self.round.to_string(),
            name.to_owned(),
            format!("{:.0}", of.median_delivered),
            format!("{:.0} (second {})", of.worst_delivered, of.worst_delivered_at),
            format!("{:.3}", of.delivered_ratio),
            format!("{:.0}", of.median_p999_us),
            format!("{:.0} (second {})", of.worst_p999_us, of.worst_p999_at),
            format!("{:.1}", of.p999_ratio),
        ]
    }
}

impl DipReport {
    /// Prints the report, and returns its table.
    pub(super) fn print(&self) -> Table {
        say!("{}\n{}\n", Machine::here().line(), self.setup);
        for run in &self.runs {
            say!("{}, round {}: {}", run.server, run.round, run.line());
        }
        say!();
        let header = [
            "round",
            "server",
            "answers/s, median",
            "worst second",
            "ratio",
            "p99.9 µs, median",
            "worst second",
            "ratio",
        ];
        let rows = self.runs.iter().flat_map(|run| {
            [run.cells(&run.server, &run.steadiness), run.cells("responder", &run.noise_steadiness)]
        });
        let verdict = |outcome: &DipOutcome| {
            let (holds, figures) = outcome.sentences();
            format!("{}: {}. {figures}", outcome.server, holds.to_uppercase())
        };
        let notes = self.outcomes.iter().map(verdict).collect();
        let table = Table { notes, ..Table::new(2, &header, rows.collect()) };
        table.print();
        table
    }
}
