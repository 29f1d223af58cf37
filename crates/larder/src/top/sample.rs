//! One answer to `stats`.

use std::collections::HashMap;
use std::time::Instant;

use larder_server::Histogram;
use larder_server::condition::number;

/// The row by which Larder is recognised.
const LARDER: &str = "larder_version";

/// The rows of one `stats`, and the time at which they came.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) taken: Instant,
    rows: HashMap<String, String>,
    /// The latencies of all commands; `None` if the server does not tell them.
    latency: Option<Histogram>,
}

impl Sample {
    /// Creates a sample of these rows. Replaces control characters in texts, because a terminal
    /// would obey them.
    pub(super) fn new(taken: Instant, rows: Vec<(String, String)>) -> Sample {
        let rows = rows.into_iter().map(|(name, text)| (name, printable(&text)));
        Sample { taken, rows: rows.collect(), latency: None }
    }

    /// Adds the latencies from the rows of `stats buckets`. If [`Histogram::parse`] cannot read a
    /// row, the sample has no latencies.
    pub(super) fn with_buckets(mut self, rows: &[(String, String)]) -> Sample {
        let classes = rows.iter().filter(|(name, _)| name.starts_with("buckets:"));
        let classes = classes.map(|(_, text)| Histogram::parse(text));
        self.latency = classes
            .reduce(|sum, class| {
                let mut sum = sum?;
                sum.add(&class?);
                Some(sum)
            })
            .flatten();
        self
    }

    pub(super) fn is_larder(&self) -> bool {
        self.rows.contains_key(LARDER)
    }

    pub(super) fn latency(&self) -> Option<&Histogram> {
        self.latency.as_ref()
    }

    pub(super) fn text(&self, row: &str) -> Option<&str> {
        #[cfg(test)]
        tests::NAMED.with_borrow_mut(|named| named.insert(row.to_owned()));
        self.rows.get(row).map(String::as_str)
    }

    pub(super) fn number(&self, row: &str) -> Option<f64> {
        number(self.text(row)?)
    }

    pub(super) fn whole(&self, row: &str) -> Option<u64> {
        self.text(row)?.parse().ok()
    }

    /// Returns the seconds from this sample to `later`. This machine's clock does not advance while
    /// the machine sleeps. If it slept in between, returns the seconds by the server's clock.
    pub(super) fn seconds_to(&self, later: &Sample) -> f64 {
        let elapsed = later.taken.saturating_duration_since(self.taken).as_secs_f64().max(0.001);
        match (self.number("uptime"), later.number("uptime")) {
            (Some(before), Some(after)) if after - before > elapsed + 2.0 => after - before,
            _ => elapsed,
        }
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

/// Returns a text of a server with its control characters replaced.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    thread_local! {
        /// The rows that this thread has asked for.
        pub(in crate::top) static NAMED: RefCell<BTreeSet<String>> = RefCell::default();
    }
    use std::time::Duration;

    #[test]
    fn a_server_cannot_command_the_terminal() {
        let rows = vec![("version".to_owned(), "1\x1b]52;c;eA==\x07\u{9b}2".to_owned())];
        let sample = Sample::new(Instant::now(), rows);
        assert_eq!(sample.text("version"), Some("1\u{fffd}]52;c;eA==\u{fffd}\u{fffd}2"));
    }

    #[test]
    fn latencies_are_the_sum_of_all_classes() {
        let rows = |texts: &[&str]| -> Vec<(String, String)> {
            texts.iter().map(|text| ("buckets:get".to_owned(), (*text).to_owned())).collect()
        };
        let sample = || Sample::new(Instant::now(), Vec::new());
        let both = sample().with_buckets(&rows(&["1000:3", "", "1000:1 2000:4"]));
        assert_eq!(both.latency(), Histogram::parse("1000:4 2000:4").as_ref());
        for unknown in [&["1000:3", "strange"][..], &["1001:3", "1000:3"], &[]] {
            assert!(sample().with_buckets(&rows(unknown)).latency().is_none(), "{unknown:?}");
        }
        let foreign = [("other".to_owned(), "1000:3".to_owned())];
        assert!(sample().with_buckets(&foreign).latency().is_none());
    }

    #[test]
    fn time_that_this_machine_slept_counts() {
        let at = Instant::now();
        let sample = |at, uptime: &str| Sample::new(at, vec![("uptime".into(), uptime.into())]);
        let first = sample(at, "100");
        let seconds =
            |after, uptime| first.seconds_to(&sample(at + Duration::from_secs(after), uptime));
        assert!((seconds(1, "3700") - 3600.0).abs() < 1e-9);
        assert!((seconds(10, "111") - 10.0).abs() < 1e-9);
    }
}
