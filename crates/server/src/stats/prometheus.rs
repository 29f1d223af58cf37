//! `/metrics` in Prometheus' text format, version 0.0.4. The names of the memcached exporter come
//! first, then Larder's. Invariant: no label has a value that a client chooses, so clients cannot
//! create series.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::exporter::{self, RowTexts, Shown};
use super::groups::rows_of;
use super::metric::{Metric, MetricKind, Reading, each, each_histogram, escaped};
use super::snapshot::Snapshot;
use super::table;

/// Returns all metrics as text.
pub(super) fn text(snapshot: &Snapshot<'_>) -> String {
    let mut page = String::with_capacity(32 << 10);
    exporter_text(snapshot, &mut page);
    larder_text(snapshot, &mut page);
    page
}

/// Writes the lines in front of the samples of a metric. This file ignores the results of `write!`,
/// because writing to a `String` cannot fail.
fn head(page: &mut String, name: &str, kind: &str, help: &str) {
    let help = help.replace('\\', "\\\\").replace('\n', "\\n");
    let _ = write!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

/// Writes a sample. `labels` has no braces.
fn sample(page: &mut String, name: &str, labels: &str, value: &str) {
    let _ = match labels {
        "" => writeln!(page, "{name} {value}"),
        labels => writeln!(page, "{name}{{{labels}}} {value}"),
    };
}

fn exporter_text(snapshot: &Snapshot<'_>, page: &mut String) {
    let mut groups: BTreeMap<&str, RowTexts> = BTreeMap::new();
    let lists = exporter::LISTS.iter().filter(|list| !matches!(list.shown, Shown::Never(_)));
    for list in lists {
        let rows = groups.entry(list.group).or_insert_with(|| rows_of(snapshot, list.group));
        for family in list.families {
            let mut begun = false;
            for (labels, formula) in family.samples {
                let Some(value) = exporter::value(formula, rows) else { continue };
                if !std::mem::replace(&mut begun, true) {
                    head(page, family.name, family.kind.prometheus(), help(family, list.group));
                }
                sample(page, family.name, &exporter::filled(labels, rows), &value);
            }
        }
    }
}

/// Returns the help of a metric of the exporter.
fn help(family: &exporter::Family, group: &str) -> &'static str {
    if !family.help.is_empty() {
        return family.help;
    }
    let row = family.samples.first().map(|(_, formula)| *formula).unwrap_or_default();
    match table::all().find(|metric| metric.group == group && metric.row == row) {
        Some(metric) if metric.kind != MetricKind::Absent => metric.help,
        Some(_) => "Always 0, because Larder does not have this mechanism.",
        // Not reached: families with a row of `stats settings` or with several rows have their own
        // help.
        None => "See docs/metrics.md.",
    }
}

fn larder_text(snapshot: &Snapshot<'_>, page: &mut String) {
    let mut named: Vec<&Metric> = table::all().filter(|metric| !metric.name.is_empty()).collect();
    // The format requires that all samples of a name stand together. The sort is stable, so metrics
    // with the same name keep their order in the table.
    named.sort_by_key(|metric| metric.name);
    for family in named.chunk_by(|a, b| a.name == b.name) {
        if family[0].kind == MetricKind::Histogram {
            histograms(snapshot, family[0], page);
            continue;
        }
        let mut begun = false;
        each(family.iter().copied(), snapshot, &mut |metric, _, scope, value| {
            if !std::mem::replace(&mut begun, true) {
                head(page, metric.name, metric.kind.prometheus(), family_help(family));
            }
            let scope = scope.iter().map(|(name, value)| (*name, *value));
            let mut labels: Vec<String> =
                scope.map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
            match metric.kind {
                MetricKind::Info => {
                    labels.push(format!("{}=\"{}\"", metric.labels, escaped(&value.to_string())));
                }
                _ if metric.labels.is_empty() => {}
                _ => labels.push(metric.labels.to_owned()),
            }
            sample(page, metric.name, &labels.join(","), &value.sample(metric.unit));
        });
    }
}

/// Writes all histograms of `metric` under its name.
fn histograms(snapshot: &Snapshot<'_>, metric: &Metric, page: &mut String) {
    let [bucket, sum, count] =
        ["bucket", "sum", "count"].map(|part| format!("{}_{part}", metric.name));
    let mut begun = false;
    each_histogram(metric, snapshot, &mut |labels, unit, histogram| {
        if !std::mem::replace(&mut begun, true) {
            head(page, metric.name, metric.kind.prometheus(), metric.help);
        }
        let base = |value: u64| Reading::Whole(value).sample(unit);
        let scope: String =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\",", escaped(value))).collect();
        for (bound, cumulative) in histogram.cumulative_by_few() {
            let labels = format!("{scope}le=\"{}\"", base(bound));
            sample(page, &bucket, &labels, &cumulative.to_string());
        }
        // The sum and the count come from the same histogram as the buckets, so that all of them
        // agree.
        let all = histogram.count().to_string();
        sample(page, &bucket, &format!("{scope}le=\"+Inf\""), &all);
        let scope = scope.trim_end_matches(',');
        sample(page, &sum, scope, &base(histogram.sum));
        sample(page, &count, scope, &all);
    });
}

/// Returns the help of several metrics that share a name.
fn family_help(family: &[&Metric]) -> &'static str {
    match family {
        [metric] => metric.help,
        [metric, ..] => match metric.name {
            "larder_limit_decisions_total" => "Decisions of rate limits, by policy and result.",
            "larder_commit_seconds" => "Durations of the latest commits.",
            _ => metric.help,
        },
        [] => "",
    }
}
