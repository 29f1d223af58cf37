//! The results of the lab: points, and the file that the report and `larder bench diff` read.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};

use crate::commands::output::Build;
use crate::generator::{Second, Summary};
use crate::machine::Machine;
use crate::{Error, Result};

/// The version of the format of the result file.
pub(crate) const SCHEMA: u64 = 1;

/// The results of one run of the lab.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) schema: u64,
    /// The end of the last run that measured points, in the form of RFC 3339.
    pub(crate) date: String,
    pub(crate) larder: Build,
    /// The command line, word by word. Its `--only`, if any, names all experiments of the report.
    pub(crate) command: Vec<String>,
    pub(crate) machine: Machine,
    pub(crate) disk: Disk,
    pub(crate) scale: String,
    /// Each recorded trace with its name, counts and hash, as in the journal; empty if there are
    /// none. Results of older versions do not have it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) traces: String,
    /// True if a signal ended this run early, or if a system has only some points of an experiment
    /// and no failure explains the missing ones.
    pub(crate) interrupted: bool,
    pub(crate) systems: Vec<SystemRow>,
    pub(crate) missing: Vec<MissingRow>,
    pub(crate) experiments: Vec<ExperimentResults>,
}

/// The device on which the systems keep their files.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Disk {
    pub(crate) directory: String,
    pub(crate) filesystem: String,
    /// The median of the time of a write of 4 KiB and the `fdatasync` after it, in microseconds.
    /// The next field is the 99th percentile.
    pub(crate) fsync_us_p50: f64,
    pub(crate) fsync_us_p99: f64,
}

/// A system that took part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SystemRow {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) family: String,
    /// `none`, `async` or `sync`.
    pub(crate) durability: String,
    pub(crate) version: String,
    /// A note for the report, such as "stands in for MySQL", if this system replaces a system of an
    /// article.
    pub(crate) stand_in: Option<String>,
    /// The command line of the system and those of its settings that affect figures, as in the
    /// first experiment that started the system. [`ExperimentResults::settings`] has those of each
    /// experiment.
    pub(crate) settings: Vec<String>,
}

/// A system that was not found, and how to install it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MissingRow {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) why: String,
    pub(crate) install: String,
}

/// The points of one experiment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ExperimentResults {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) question: String,
    pub(crate) conditions: Vec<String>,
    /// The command that repeats the experiment.
    #[serde(default)]
    pub(crate) command: String,
    /// The command line of each system and those of its settings that affect figures, by the id of
    /// the system. A system can have other settings in another experiment, for example for memory
    /// and space.
    #[serde(default)]
    pub(crate) settings: BTreeMap<String, Vec<String>>,
    pub(crate) points: Vec<Point>,
    pub(crate) not_run: Vec<NotRun>,
}

/// A system that lacks points of an experiment because a turn failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NotRun {
    pub(crate) system: String,
    pub(crate) why: String,
}

/// The identity of a point within its experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PointId {
    pub(crate) system: String,
    /// The series, such as `insert` or `blocking`.
    pub(crate) case: String,
    /// The position on the horizontal axis: threads, an offered rate, a size.
    pub(crate) x: Option<f64>,
    /// The number of the round, from 1.
    pub(crate) round: usize,
}

/// One measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Point {
    #[serde(flatten)]
    pub(crate) id: PointId,
    #[serde(flatten)]
    pub(crate) figures: Figures,
    /// The reason why the figures, if there are any, do not count. An example is a wrong answer.
    pub(crate) void: Option<String>,
    /// Figures that not all experiments have, by name.
    #[serde(default)]
    pub(crate) extra: BTreeMap<String, f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) seconds: Vec<SecondRow>,
    /// The times at which the server wrote a checkpoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) checkpoints: Vec<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) samples: Option<Samples>,
    /// Numbers of requests per range of latencies, see [`Summary::histogram`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) histogram: Vec<(f64, u64)>,
}

/// The figures of a point that do not depend on the experiment. All latencies are in microseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// Answered requests per second.
    pub(crate) rate: f64,
    /// Requests per second that were due; only in the experiment `cliff`.
    pub(crate) offered: Option<f64>,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p95_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) p99999_us: f64,
    pub(crate) max_us: f64,
    /// Processor time of the server per request, in microseconds.
    pub(crate) cpu_us: f64,
    /// Average number of processors that the server kept busy.
    pub(crate) server_busy: f64,
    pub(crate) generator_busy: f64,
    pub(crate) generator_bound: bool,
    /// Resident bytes of the server at the end of the measurement.
    pub(crate) rss: u64,
    /// Bytes per second that the server wrote to devices or to the page cache, and bytes per second
    /// that it read from devices.
    pub(crate) written_per_second: f64,
    pub(crate) read_per_second: f64,
    pub(crate) hit_ratio: Option<f64>,
}

/// The figures of one second: requests per second, latencies in microseconds, processors that the
/// server kept busy in user mode and in the kernel, and bytes written and read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SecondRow {
    pub(crate) rate: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
    pub(crate) cpu_user: f64,
    pub(crate) cpu_system: f64,
    pub(crate) written: f64,
    pub(crate) read: f64,
}

/// A part of a measurement. Both ends are in seconds since the measurement began.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Span {
    pub(crate) from: f64,
    pub(crate) to: f64,
}

/// The start and the latency of every request of a run, in microseconds. The starts count from the
/// beginning of the measurement, as little-endian `u32`. The latencies are little-endian `f32`.
/// Each of the two columns is encoded in base64.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Samples {
    pub(crate) t_us: String,
    pub(crate) latency_us: String,
}

impl Point {
    pub(crate) fn new(point_id: PointId, figures: Figures) -> Point {
        Point {
            id: point_id,
            figures,
            void: None,
            extra: BTreeMap::new(),
            seconds: Vec::new(),
            checkpoints: Vec::new(),
            samples: None,
            histogram: Vec::new(),
        }
    }

    /// Returns the point of a load. If the server did not return every stored item, the point is
    /// void.
    pub(crate) fn of_load(point_id: PointId, summary: &Summary) -> Point {
        let lost = summary.hit_ratio.filter(|&ratio| ratio < 1.0);
        let void = lost.map(|ratio| format!("the server lost items: hit ratio {ratio:.4}"));
        Point { void, ..Point::new(point_id, Figures::of(summary)) }
    }

    /// Returns a point without figures, for a run that failed.
    pub(crate) fn void(point_id: PointId, why: String) -> Point {
        Point { void: Some(why), ..Point::new(point_id, Figures::default()) }
    }

    pub(crate) fn with(mut self, name: &str, figure: f64) -> Point {
        self.extra.insert(name.to_owned(), figure);
        self
    }
}

impl Figures {
    pub(crate) fn of(summary: &Summary) -> Figures {
        let latency = &summary.latency;
        let server = summary.server.as_ref();
        let per_second = |bytes: u64| bytes as f64 / summary.seconds.max(0.001);
        Figures {
            // Requests that were answered after the end of the measurement do not count.
            rate: summary.requests_per_second
                - summary.answered_late as f64 / summary.seconds.max(0.001),
            offered: None,
            mean_us: latency.mean_us,
            p50_us: latency.get("p50"),
            p90_us: latency.get("p90"),
            p95_us: latency.get("p95"),
            p99_us: latency.get("p99"),
            p999_us: latency.get("p99.9"),
            p99999_us: latency.get("p99.999"),
            max_us: latency.max_us,
            cpu_us: server.map_or(0.0, |server| server.cpu_us_per_request),
            server_busy: server.map_or(0.0, |server| server.busy),
            generator_busy: summary.generator_busy,
            generator_bound: summary.generator_bound,
            rss: server.map_or(0, |server| server.rss_after),
            written_per_second: server.map_or(0.0, |server| per_second(server.written)),
            read_per_second: server.map_or(0.0, |server| per_second(server.read)),
            hit_ratio: summary.hit_ratio,
        }
    }
}

impl SecondRow {
    pub(crate) fn of(second: &Second) -> SecondRow {
        let server = second.server;
        SecondRow {
            rate: second.requests_per_second,
            p50_us: second.p50_us,
            p99_us: second.p99_us,
            max_us: second.max_us,
            cpu_user: server.map_or(0.0, |server| (server.busy - server.system).max(0.0)),
            cpu_system: server.map_or(0.0, |server| server.system),
            written: server.map_or(0.0, |server| server.written_per_second),
            read: server.map_or(0.0, |server| server.read_per_second),
        }
    }
}

impl Span {
    /// Returns the parts of `times` that lie within a measurement.
    pub(crate) fn within(summary: &Summary, times: &[Range<Instant>]) -> Vec<Span> {
        let Some(began) = summary.began else { return Vec::new() };
        let at = |time: Instant| time.saturating_duration_since(began).as_secs_f64();
        let spans = times.iter().map(|time| {
            let (from, to) = (at(time.start), at(time.end).min(summary.seconds));
            Span { from, to }
        });
        spans.filter(|span| span.to > 0.0 && span.from < summary.seconds).collect()
    }
}

impl Samples {
    /// Packs samples, given as their start and latency in nanoseconds.
    pub(crate) fn of(samples: &[(u64, u64)]) -> Samples {
        let starts = samples.iter().flat_map(|sample| ((sample.0 / 1000) as u32).to_le_bytes());
        let latencies = samples.iter().flat_map(|sample| (sample.1 as f32 / 1000.0).to_le_bytes());
        Samples {
            t_us: BASE64_STANDARD.encode(starts.collect::<Vec<u8>>()),
            latency_us: BASE64_STANDARD.encode(latencies.collect::<Vec<u8>>()),
        }
    }
}

impl Results {
    /// Reads a result file. Also returns its text.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the file cannot be read, and [`Error::Usage`] if it is not a result
    /// file.
    pub(crate) fn read(path: &Path) -> Result<(String, Results)> {
        let text = fs::read_to_string(path)
            .map_err(|e| Error::io(format!("cannot read {}", path.display()), e))?;
        let results = serde_json::from_str(&text).map_err(|error| {
            let file = path.display();
            Error::usage(format!("{file} is not a result of larder bench all: {error}"))
        })?;
        Ok((text, results))
    }
}
