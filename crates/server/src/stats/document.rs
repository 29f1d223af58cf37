//! The tables of `docs/metrics.md`, made from the tables of the code. The text around them is
//! written by hand.

use std::fmt::Write;
use std::path::Path;

use super::exporter::{self, FamilyList};
use super::metric::{Metric, MetricKind};
use super::table;

/// If this environment variable is set, the test below writes the tables into `docs/metrics.md`.
/// Otherwise it compares them with that file.
const WRITE: &str = "LARDER_UPDATE";

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{text}`") }
}

/// Returns a table of the metrics that `select` accepts.
fn metrics(select: impl Fn(&Metric) -> bool) -> String {
    let mut text = "| row | on `/metrics` | kind | unit | servers | meaning |\n\
         |---|---|---|---|---|---|\n"
        .to_owned();
    for metric in table::all().filter(|metric| select(metric)) {
        let labels = match (metric.kind, metric.labels) {
            (_, "") => String::new(),
            (MetricKind::Info, label) => format!("{{{label}=\"…\"}}"),
            (_, labels) => format!("{{{labels}}}"),
        };
        let name = match metric.name {
            "" => of_exporter(metric),
            name => code(&format!("{name}{labels}")),
        };
        let _ = writeln!(
            text,
            "| `{}` | {name} | {} | {} | {} | {} |",
            metric.row,
            metric.kind.name(),
            metric.unit.name(),
            metric.joined.name(),
            cell(metric.help),
        );
    }
    text
}

/// Returns the first name of the memcached exporter that has a value computed from the metric's
/// row. Returns an empty text if there is no such name.
fn of_exporter(metric: &Metric) -> String {
    let lists = exporter::LISTS.iter().filter(|list| list.group == metric.group);
    let mut samples = lists.flat_map(|list| list.families).flat_map(|family| {
        family.samples.iter().map(move |(labels, formula)| (family.name, labels, formula))
    });
    let uses = |formula: &str| exporter::terms(formula).any(|(_, row)| row == metric.row);
    match samples.find(|(_, _, formula)| uses(formula)) {
        Some((name, &"", _)) => code(name),
        Some((name, labels, _)) => code(&format!("{name}{{{labels}}}")),
        None => String::new(),
    }
}

fn constants() -> String {
    let absent = table::all().filter(|metric| metric.kind == MetricKind::Absent);
    let rows: Vec<_> = absent.map(|metric| code(metric.row)).collect();
    format!("{}\n", rows.join(", "))
}

/// Returns the memcached exporter's names of counters that lack the suffix `_total`. Such names
/// break a convention of Prometheus.
fn unconventional() -> String {
    let families = exporter::LISTS.iter().flat_map(|list| list.families);
    let counters = families.filter(|family| family.kind == MetricKind::Counter);
    let names: Vec<_> = counters
        .filter(|family| !family.name.ends_with("_total"))
        .map(|family| code(family.name))
        .collect();
    format!("{}\n", names.join(", "))
}

fn exporter_names() -> String {
    let mut text = "| name | type | labels | formula | rows of | shown |\n\
         |---|---|---|---|---|---|\n"
        .to_owned();
    for FamilyList { group, families, shown } in exporter::LISTS {
        let group = format!("stats {group}");
        for family in *families {
            for (labels, formula) in family.samples {
                let _ = writeln!(
                    text,
                    "| `{}` | {} | {} | `{formula}` | `{}` | {} |",
                    family.name,
                    family.kind.prometheus(),
                    code(labels),
                    group.trim_end(),
                    shown.name(),
                );
            }
        }
    }
    text
}

/// Returns `text` with new tables. Each table replaces the text between the HTML comments `begin
/// NAME` and `end NAME`.
fn with_tables(text: &str) -> String {
    let has_meaning = |metric: &Metric| metric.kind != MetricKind::Absent;
    let is_ours = |metric: &Metric| metric.row.starts_with("larder_");
    let of = |group: &'static str| move |metric: &Metric| metric.group == group;
    let tables: [(&str, String); 10] = [
        ("larder", metrics(|metric| of("")(metric) && is_ours(metric))),
        ("memcached", metrics(|metric| of("")(metric) && has_meaning(metric) && !is_ours(metric))),
        ("limits", metrics(of("limits"))),
        ("latency", metrics(of("latency"))),
        ("buckets", metrics(of("buckets"))),
        ("durability", metrics(of("durability"))),
        (
            "classes",
            metrics(|metric| has_meaning(metric) && matches!(metric.group, "items" | "slabs")),
        ),
        ("constants", constants()),
        ("unconventional", unconventional()),
        ("exporter", exporter_names()),
    ];
    let mut text = text.to_owned();
    for (name, table) in tables {
        let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->"));
        let from = text.find(&begin).unwrap_or_else(|| panic!("no {begin}")) + begin.len();
        let to = text.find(&end).unwrap_or_else(|| panic!("no {end}"));
        text.replace_range(from..to, &format!("\n{table}\n"));
    }
    text
}

#[test]
fn the_documentation_has_the_tables_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let wanted = with_tables(&text);
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, wanted).unwrap();
        return;
    }
    let line = text.lines().zip(wanted.lines()).find(|(has, wants)| has != wants);
    assert!(
        text == wanted,
        "docs/metrics.md differs from the tables of the code, first here: {line:#?}\n\
         write it with: {WRITE}=1 cargo test -p larder-server --lib documentation"
    );
}
