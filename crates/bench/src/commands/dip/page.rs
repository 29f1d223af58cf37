//! The report of `larder bench dip` as one HTML file.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use super::report::{DipReport, DipRun};
use super::steadiness::{DELIVERED_MIN, LATENCY_MAX};
use crate::generator::{Second, SecondUse};
use crate::machine::Machine;
use crate::plot::{AxisScale, Line, Panel, Unit, escape, svg};
use crate::{Error, Result};

const STYLE: &str = include_str!("page.css");

/// Writes the page with a plot of every run.
pub(super) fn write(path: &Path, report: &DipReport) -> Result<()> {
    fs::write(path, page(report))
        .map_err(|e| Error::io(format!("cannot write {}", path.display()), e))
}

fn page(report: &DipReport) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>No checkpoint dip</title>\n\
         <style>\n{STYLE}</style>\n<h1>Every second of a run that overwrites its store</h1>\n\
         <p>{}</p>\n<p>{}</p>\n",
        escape(&Machine::here().line()),
        escape(&report.setup),
    );
    for outcome in &report.outcomes {
        let class = if outcome.verdict.holds { "good" } else { "bad" };
        let (holds, figures) = outcome.sentences();
        let _ = writeln!(
            out,
            "<p class=\"{class}\"><b>{}: {holds}.</b> {}</p>",
            escape(&outcome.server),
            escape(&figures)
        );
    }
    for run in &report.runs {
        let _ = write!(
            out,
            "<h2>{}, round {}</h2>\n<p>{}</p>\n<figure>{}</figure>\n",
            escape(&run.server),
            run.round,
            escape(&run.line()),
            svg(&panels(run))
        );
    }
    out + "</html>\n"
}

fn panels(run: &DipRun) -> Vec<Panel> {
    let (seconds, noise) = (&run.load.per_second, &run.noise.per_second);
    let line = |name: &str, class, series: &[Second], value: fn(&Second) -> f64| Line {
        name: name.to_owned(),
        class,
        values: series.iter().map(value).collect(),
    };
    let level = |name: String, value: f64| Line {
        name,
        class: "level",
        values: vec![value; seconds.len()],
    };
    let used = |name: &str, class, value: fn(&SecondUse) -> f64| Line {
        name: name.to_owned(),
        class,
        values: seconds.iter().map(|second| second.server.as_ref().map_or(0.0, value)).collect(),
    };
    let (delivered, p999) = (run.steadiness.median_delivered, run.steadiness.median_p999_us);
    vec![
        Panel {
            title: "answered requests per second",
            scale: AxisScale::Linear,
            unit: Unit::Count,
            lines: vec![
                level(format!("{DELIVERED_MIN} × median"), DELIVERED_MIN * delivered),
                line("responder", "noise", noise, |second| second.requests_per_second),
                line(&run.server, "a", seconds, |second| second.requests_per_second),
            ],
        },
        Panel {
            title: "latency",
            scale: AxisScale::Log,
            unit: Unit::Micros,
            lines: vec![
                level(format!("{LATENCY_MAX} × median p99.9"), LATENCY_MAX * p999),
                line("generator late", "late", seconds, |second| second.generator_lag_us),
                line("responder p99.9", "noise", noise, |second| second.p999_us),
                line("p50", "a", seconds, |second| second.p50_us),
                line("p99", "b", seconds, |second| second.p99_us),
                line("p99.9", "c", seconds, |second| second.p999_us),
            ],
        },
        Panel {
            title: "written, bytes per second",
            scale: AxisScale::Linear,
            unit: Unit::Count,
            lines: vec![used(&run.server, "a", |second| second.written_per_second)],
        },
        Panel {
            title: "processors of the server",
            scale: AxisScale::Linear,
            unit: Unit::Count,
            lines: vec![
                used("waited for", "c", |second| second.waiting),
                used("busy", "a", |second| second.busy),
            ],
        },
    ]
}
