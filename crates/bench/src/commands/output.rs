//! The output of figures: text for people, markdown for pages, JSON for programs.

use crate::say;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use crate::generator::Summary;
use crate::machine::Machine;
use crate::{Error, Result};

/// The version of the format of result files. A file with a greater version cannot be read.
pub(super) const SCHEMA: u64 = 1;

/// A result file: results with everything needed to repeat the measurement.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ResultFile<T = IgnoredAny> {
    schema: u64,
    /// The command line, word by word.
    pub(super) command: Vec<String>,
    /// The date and time at which the measurement ended, in the form of RFC 3339.
    pub(super) date: String,
    pub(super) larder: Build,
    pub(super) machine: Machine,
    /// The figures that people read.
    pub(super) table: Table,
    /// All figures. Their form depends on the command.
    results: T,
}

/// The build of Larder's executable that ran the measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Build {
    version: String,
    /// The commit, if the build was given `LARDER_REVISION`.
    revision: Option<String>,
    /// `release` or `debug`. Files of older versions do not have it.
    #[serde(default)]
    profile: Option<String>,
}

impl Build {
    pub(crate) fn this() -> Build {
        let revision = option_env!("LARDER_REVISION").map(str::to_owned);
        let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
        let (version, profile) = (env!("CARGO_PKG_VERSION").to_owned(), Some(profile.to_owned()));
        Build { version, revision, profile }
    }

    /// Returns true for a debug build. Its figures say nothing about a release build.
    pub(crate) fn is_debug(&self) -> bool {
        self.profile.as_deref() == Some("debug")
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Build { version, revision, .. } = self;
        let revision = revision.as_ref().map_or(String::new(), |commit| format!(" ({commit})"));
        let debug = if self.is_debug() { ", debug build" } else { "" };
        write!(f, "larder {version}{revision}{debug}")
    }
}

/// Returns the present time in the form of RFC 3339.
pub(crate) fn now_rfc3339() -> String {
    let mut date = String::new();
    // Writing into a string cannot fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut date));
    date
}

/// The option for a result file.
#[derive(Clone, Debug, Args)]
pub(super) struct JsonFile {
    /// Write all figures, the date, the machine and this command line to a JSON file (- is standard
    /// output), which `larder bench table` can print
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl JsonFile {
    /// Prints the table, and writes the result file if one is wanted.
    pub(super) fn report<T: Serialize>(&self, table: Table, results: &T) -> Result<()> {
        table.print();
        self.write(table, results)
    }

    /// Writes the result file if one is wanted.
    pub(super) fn write<T: Serialize>(&self, table: Table, results: &T) -> Result<()> {
        let Some(path) = &self.json else { return Ok(()) };
        let command = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        let file = ResultFile {
            schema: SCHEMA,
            command: command.collect(),
            date: now_rfc3339(),
            larder: Build::this(),
            machine: Machine::here(),
            table,
            results,
        };
        let doing = || format!("cannot write {}", path.display());
        let text = serde_json::to_string_pretty(&file).map_err(|e| Error::io(doing(), e.into()))?;
        if path == Path::new("-") {
            say!("{text}");
            return Ok(());
        }
        fs::write(path, text + "\n").map_err(|e| Error::io(doing(), e))
    }
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
        say!("  GENERATOR-BOUND: the generator used more than 80 % of its threads or processors");
    }
    if let Some(first) = &summary.first_error {
        say!("  {} error answers, the first: {first}", summary.errors);
    }
    if summary.unanswered > 0 {
        say!("  {} requests were never answered", summary.unanswered);
    }
}

/// A server counts as undisturbed if at most this number of its threads were waiting for a
/// processor at one time, on average over the run.
pub(super) const WAITING_MAX: f64 = 0.1;

/// Returns the figures of one run as a table of one row.
pub(super) fn summary_table(summary: &Summary) -> Table {
    let header = [
        "load",
        "connections",
        "pipeline",
        "requests/s",
        "keys/s",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "max µs",
        "hit ratio",
        "server CPU µs per key",
    ];
    let latency = &summary.latency;
    let known = |figure: Option<f64>, decimals| {
        figure.map_or("–".to_owned(), |figure| format!("{figure:.decimals$}"))
    };
    let row = vec![
        format!("{}, {}", summary.mix, summary.pacing),
        summary.connections.to_string(),
        summary.pipeline.to_string(),
        format!("{:.0}", summary.requests_per_second),
        format!("{:.0}", summary.keys_per_second),
        format!("{:.1}", latency.get("p50")),
        format!("{:.1}", latency.get("p99")),
        format!("{:.1}", latency.get("p99.9")),
        format!("{:.1}", latency.max_us),
        known(summary.hit_ratio, 4),
        known(summary.server.map(|server| server.cpu_us_per_key), 3),
    ];
    Table::new(3, &header, vec![row])
}

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

/// A table of measured cases and their figures, in Markdown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Table {
    /// Number of columns at the left that name the case. The others hold its figures.
    pub(super) case_columns: usize,
    pub(super) header: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
    /// The lines beneath the table.
    pub(super) notes: Vec<String>,
}

/// A column: its head, and the function that returns its cell for a row.
pub(super) type Column<'a, R> = (&'a str, &'a dyn Fn(&R) -> String);

impl Table {
    /// Returns a table with one line for each item of `rows`. The first `case_columns` columns name
    /// the case.
    pub(super) fn of<R>(case_columns: usize, rows: &[R], columns: &[Column<'_, R>]) -> Table {
        let heads: Vec<&str> = columns.iter().map(|column| column.0).collect();
        let cells = |row| columns.iter().map(|column| (column.1)(row)).collect();
        Table::new(case_columns, &heads, rows.iter().map(cells).collect())
    }

    pub(super) fn new(case_columns: usize, header: &[&str], rows: Vec<Vec<String>>) -> Table {
        let header = header.iter().map(|&name| name.to_owned()).collect();
        Table { case_columns, header, rows, notes: Vec::new() }
    }

    pub(super) fn print(&self) {
        say!("| {} |", self.header.join(" | "));
        say!("|{}", "---|".repeat(self.header.len()));
        for row in &self.rows {
            say!("| {} |", row.join(" | "));
        }
        if !self.notes.is_empty() {
            say!("\n{}", self.notes.join("\n"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debug_build_says_so() {
        let build = |json: &str| serde_json::from_str::<Build>(json).unwrap();
        let debug = build(r#"{"version": "1", "revision": "abc", "profile": "debug"}"#);
        assert!(debug.is_debug() && debug.to_string() == "larder 1 (abc), debug build");
        let release = build(r#"{"version": "1", "revision": null, "profile": "release"}"#);
        assert!(!release.is_debug() && release.to_string() == "larder 1");
        assert!(!build(r#"{"version": "1", "revision": null}"#).is_debug(), "an older file");
        assert_eq!(Build::this().is_debug(), cfg!(debug_assertions));
    }

    #[test]
    fn spreads() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Spread { min: 1.0, median: 2.0, max: 3.0 });
        assert_eq!(Spread::of(&[4.0, 1.0]).median, 2.5);
        assert_eq!(Spread::of(&[]), Spread::default());
        assert_eq!(Spread::of(&[0.5]).show(2), "0.50");
        assert_eq!(Spread::of(&[0.5, 0.7, 0.6]).show(1), "0.6 (0.5–0.7)");
    }
}
