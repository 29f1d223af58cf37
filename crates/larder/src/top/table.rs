//! The figures as rows of text and as JSON. The terminal view shows the same rows.

use larder_client::Error;
use serde::Serialize;

use super::figures::Figures;

/// Returns the rows that show a server, each as (name, text). The names are the same for all
/// servers.
pub(super) fn rows(figures: &Figures) -> [(&'static str, String); 17] {
    let rate = |rate: Option<f64>| rate.map_or_else(dash, count);
    let whole = |number: Option<u64>| number.map_or_else(dash, |number| count(number as f64));
    let size = |number: Option<u64>| number.map_or_else(dash, |number| bytes(number as f64));
    let flow = |rate: Option<f64>| rate.map_or_else(dash, |rate| format!("{}/s", bytes(rate)));
    let busy = |busy: Option<f64>| busy.map_or_else(dash, |busy| format!("{:.0} %", busy * 100.0));
    let time = |us: Option<f64>| us.map_or_else(dash, duration);
    let age = figures.unsynced_ms.map_or_else(dash, |age| format!("{age} ms"));
    [
        ("reads/s", rate(figures.reads_per_second)),
        ("writes/s", rate(figures.writes_per_second)),
        ("deletes/s", rate(figures.deletes_per_second)),
        ("counts/s", rate(figures.counts_per_second)),
        ("touches/s", rate(figures.touches_per_second)),
        (
            "hit ratio",
            figures.hit_ratio.map_or_else(dash, |ratio| format!("{:.2} %", ratio * 100.0)),
        ),
        (
            "p50 p99 p99.9",
            [figures.latency_p50_us, figures.latency_p99_us, figures.latency_p999_us]
                .map(time)
                .join(" "),
        ),
        ("evictions/s", rate(figures.evictions_per_second)),
        ("cpu user + system", format!("{} + {}", busy(figures.cpu_user), busy(figures.cpu_system))),
        ("received", flow(figures.received_bytes_per_second)),
        ("sent", flow(figures.sent_bytes_per_second)),
        ("connections", whole(figures.connections)),
        ("items", whole(figures.items)),
        (
            "memory",
            format!("{} of {}", size(figures.memory_used_bytes), size(figures.memory_limit_bytes)),
        ),
        ("resident", size(figures.resident_bytes)),
        ("on flash", size(figures.flash_bytes)),
        ("not yet synced", format!("{}, {age}", size(figures.unsynced_bytes))),
    ]
}

fn dash() -> String {
    "–".to_owned()
}

/// Returns a number with at most four digits and a unit: 1234, 56.7 k, 8.90 M.
pub(super) fn count(number: f64) -> String {
    scaled(number, 1000.0, &["", "k", "M", "G", "T"])
}

/// Returns a time with at most three digits and a unit: 0.8 µs, 12 µs, 4.6 ms.
fn duration(us: f64) -> String {
    let (number, unit) = match us {
        us if us < 999.5 => (us, "µs"),
        us if us < 999_500.0 => (us / 1000.0, "ms"),
        us => (us / 1e6, "s"),
    };
    let digits = usize::from(number < 9.95);
    format!("{number:.digits$} {unit}")
}

/// Returns a size in binary units.
pub(super) fn bytes(number: f64) -> String {
    scaled(number, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

fn scaled(number: f64, base: f64, units: &[&str]) -> String {
    let mut number = number;
    let mut unit = 0;
    // Numbers below ten times the base are shown with all digits, in the smallest unit.
    while unit + 1 < units.len() && number >= if unit == 0 { base * 10.0 } else { base } {
        number /= base;
        unit += 1;
    }
    let digits = match unit {
        0 if number.fract() == 0.0 || number >= 100.0 => 0,
        _ if number >= 100.0 => 0,
        _ if number >= 10.0 => 1,
        _ => 2,
    };
    format!("{number:.digits$} {}", units[unit]).trim_end().to_owned()
}

/// Returns one column for each server, with the rows' names at the left.
pub(super) fn text(results: &[(String, Result<Figures, String>)]) -> String {
    let empty = rows(&Figures::default());
    let mut lines: Vec<Vec<String>> = vec![vec![String::new()], vec!["version".to_owned()]];
    lines.extend(empty.iter().map(|(name, _)| vec![(*name).to_owned()]));
    lines.push(vec!["condition".to_owned()]);
    for (name, result) in results {
        let column: Vec<String> = match result {
            Ok(figures) => {
                let head = [name.clone(), figures.version.clone()];
                let values = rows(figures).into_iter().map(|(_, value)| value);
                head.into_iter().chain(values).chain([figures.condition.text.clone()]).collect()
            }
            Err(why) => {
                let dashes = std::iter::repeat_with(dash).take(empty.len() + 1);
                [name.clone()].into_iter().chain(dashes).chain([why.clone()]).collect()
            }
        };
        lines.iter_mut().zip(column).for_each(|(line, cell)| line.push(cell));
    }
    let columns = results.len() + 1;
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns).filter_map(width).collect();
    let line = |cells: &Vec<String>| {
        let padded = cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    lines.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// One server in the JSON.
#[derive(Serialize)]
struct Row<'a> {
    server: &'a str,
    #[serde(flatten)]
    figures: Option<&'a Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

/// Returns an array with an object for each server.
///
/// # Errors
/// Returns an error if the figures cannot be written as JSON.
pub(super) fn json(results: &[(String, Result<Figures, String>)]) -> Result<String, Error> {
    let rows: Vec<Row<'_>> = results
        .iter()
        .map(|(server, result)| Row {
            server,
            figures: result.as_ref().ok(),
            error: result.as_ref().err().map(String::as_str),
        })
        .collect();
    serde_json::to_string_pretty(&rows)
        .map_err(|error| Error::Io { doing: "write the figures".into(), source: error.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(count(0.0), "0");
        assert_eq!(count(1234.0), "1234");
        assert_eq!(count(56_700.0), "56.7 k");
        assert_eq!(count(8_900_000.0), "8.90 M");
        assert_eq!(count(0.5), "0.50");
        assert_eq!(bytes(1024.0 * 1024.0 * 300.0), "300 MiB");
        assert_eq!(bytes(5.0), "5 B");
        assert_eq!(
            [0.846, 9.96, 999.4, 999.6, 4560.0, 2.5e6].map(duration),
            ["0.8 µs", "10 µs", "999 µs", "1.0 ms", "4.6 ms", "2.5 s"]
        );
    }

    #[test]
    fn a_server_that_fails_has_its_reason() {
        let results = [
            ("a:1".to_owned(), Ok(Figures { reads_per_second: Some(5.0), ..Figures::default() })),
            ("b:2".to_owned(), Err("refused".to_owned())),
        ];
        let text = text(&results);
        let reads = text.lines().find(|line| line.starts_with("reads/s")).unwrap();
        assert_eq!(reads.split_whitespace().collect::<Vec<_>>(), ["reads/s", "5", "–"]);
        assert!(text.lines().last().unwrap().ends_with("refused"));
        let times = text.lines().find(|line| line.starts_with("p50 p99 p99.9")).unwrap();
        assert_eq!(times.matches('–').count(), 4, "{times}");
        let json: serde_json::Value = serde_json::from_str(&json(&results).unwrap()).unwrap();
        assert_eq!(json[0]["reads_per_second"], 5.0);
        assert_eq!(json[0]["latency_p999_us"], serde_json::Value::Null);
        assert_eq!(json[1]["error"], "refused");
        assert!(json[1].get("reads_per_second").is_none());
    }
}
