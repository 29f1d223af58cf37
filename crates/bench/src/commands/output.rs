//! The output of figures: text for people, markdown for pages, JSON for programs.

use crate::say;
use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::generator::Summary;
use crate::machine::Machine;
use crate::{Error, Result};

/// A report with everything needed to repeat the measurement.
#[derive(Debug, Serialize)]
struct Document<'a, T> {
    machine: Machine,
    command: String,
    report: &'a T,
}

/// Writes a report, with facts about the machine and the command line, to `path`; `-` is the
/// standard output.
pub(super) fn write_json<T: Serialize>(path: Option<&Path>, report: &T) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let command = std::env::args().collect::<Vec<_>>().join(" ");
    let document = Document { machine: Machine::here(), command, report };
    let doing = || format!("cannot write {}", path.display());
    let text = serde_json::to_string_pretty(&document).map_err(|e| Error::io(doing(), e.into()))?;
    if path == Path::new("-") {
        say!("{text}");
        return Ok(());
    }
    fs::write(path, text + "\n").map_err(|e| Error::io(doing(), e))
}

/// Prints the report of one run for people.
pub(super) fn print_summary(summary: &Summary) {
    say!(
        "{}, {} connections, pipeline {}, {}, {} keys of {} bytes ({}), values of {} bytes, seed {}",
        summary.pacing,
        summary.connections,
        summary.pipeline,
        summary.mix,
        summary.keys,
        summary.key_lengths,
        summary.distribution,
        summary.value_lengths,
        summary.seed
    );
    let total = &summary.total;
    say!(
        "  {:.0} requests/s, {:.0} keys/s over {:.1} s ({} requests)",
        summary.requests_per_second,
        summary.keys_per_second,
        summary.seconds,
        total.requests
    );
    let percentiles: Vec<String> = summary
        .latency
        .percentiles_us
        .iter()
        .map(|(name, value)| format!("{name} {value:.1}"))
        .collect();
    say!("  latency µs: {}, max {:.1}", percentiles.join(", "), summary.latency.max_us);
    if summary.verbs.len() > 1 {
        for (name, latency) in &summary.verb_latency {
            let requests = summary.verbs.get(name).map_or(0, |count| count.requests);
            let (p50, p99) = (latency.get("p50"), latency.get("p99"));
            say!("    {name:<7} {requests:>12} requests, p50 {p50:.1}, p99 {p99:.1}");
        }
    }
    if let Some(ratio) = summary.hit_ratio {
        let checked = if summary.verified { ", every value checked" } else { "" };
        say!("  hit ratio {ratio:.4}{checked}");
    }
    if let Some(server) = &summary.server {
        say!(
            "  server: {:.3} µs of processor time per request, {:.3} per key, {:.2} processors busy, \
             RSS {}",
            server.cpu_us_per_request,
            server.cpu_us_per_key,
            server.busy,
            megabytes(server.rss_after)
        );
    }
    if summary.server.is_some_and(|server| server.waiting > WAITING_MAX) {
        say!("  SHARED PROCESSOR: the server often waited for a processor that others used");
    }
    let busy = summary.generator_busy;
    say!("  generator: {busy:.2} processors busy, lag p99 {:.1} µs", summary.generator_lag_p99_us);
    if summary.generator_bound {
        say!("  GENERATOR-BOUND: the generator's threads were more than 80 % busy");
    }
    if let Some(first) = &summary.first_error {
        say!("  {} error answers, the first: {first}", summary.errors);
    }
    if summary.unanswered > 0 {
        say!("  {} requests were never answered", summary.unanswered);
    }
}

/// A server counts as undisturbed if on average at most this many of its threads waited for a
/// processor.
pub(super) const WAITING_MAX: f64 = 0.1;

pub(super) fn megabytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Minimum, median and maximum of a figure over several runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) min: f64,
    pub(super) median: f64,
    pub(super) max: f64,
}

impl Spread {
    pub(super) fn of(values: &[f64]) -> Spread {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() {
            0 => return Spread::default(),
            length if length % 2 == 1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        };
        Spread { min: sorted[0], median, max: sorted[sorted.len() - 1] }
    }

    /// Formats the spread as `median (min–max)` with `decimals` decimals.
    pub(super) fn show(&self, decimals: usize) -> String {
        let Spread { min, median, max } = self;
        if min == max {
            return format!("{median:.decimals$}");
        }
        format!("{median:.decimals$} ({min:.decimals$}–{max:.decimals$})")
    }
}

/// Prints a markdown table.
pub(super) fn print_table(header: &[&str], rows: &[Vec<String>]) {
    say!("| {} |", header.join(" | "));
    say!("|{}", "---|".repeat(header.len()));
    for row in rows {
        say!("| {} |", row.join(" | "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Spread { min: 1.0, median: 2.0, max: 3.0 });
        assert_eq!(Spread::of(&[4.0, 1.0]).median, 2.5);
        assert_eq!(Spread::of(&[]), Spread::default());
        assert_eq!(Spread::of(&[0.5]).show(2), "0.50");
        assert_eq!(Spread::of(&[0.5, 0.7, 0.6]).show(1), "0.6 (0.5–0.7)");
    }
}
