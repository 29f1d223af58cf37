//! One answer to `stats`.

use std::collections::HashMap;
use std::time::Instant;

/// The rows of one `stats`, and the time at which they came.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) taken: Instant,
    rows: HashMap<String, String>,
}

impl Sample {
    pub(super) fn new(taken: Instant, rows: Vec<(String, String)>) -> Sample {
        Sample { taken, rows: rows.into_iter().collect() }
    }

    pub(super) fn text(&self, row: &str) -> Option<&str> {
        self.rows.get(row).map(String::as_str)
    }

    pub(super) fn number(&self, row: &str) -> Option<f64> {
        self.text(row)?.parse().ok().filter(|number: &f64| number.is_finite())
    }

    pub(super) fn whole(&self, row: &str) -> Option<u64> {
        self.text(row)?.parse().ok()
    }

    /// Returns the sum of the rows that are there, or `None` if none is.
    pub(super) fn sum(&self, rows: &[&str]) -> Option<f64> {
        let numbers: Vec<f64> = rows.iter().filter_map(|row| self.number(row)).collect();
        (!numbers.is_empty()).then(|| numbers.iter().sum())
    }

    /// Returns true if `later` comes from the same run of the server.
    pub(super) fn is_same_run(&self, later: &Sample) -> bool {
        let goes_on = match (self.number("uptime"), later.number("uptime")) {
            (Some(before), Some(after)) => before <= after,
            _ => true,
        };
        goes_on && self.text("pid") == later.text("pid")
    }
}
