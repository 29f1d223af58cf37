//! One sentence about a server: whether all is well, and if not, what to do. The sentence is
//! derived from rows of `stats`, so this module also works for other servers that speak memcached's
//! protocol.

use serde::Serialize;

/// How urgent a condition is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// All is well.
    #[default]
    Good,
    /// The server works, but an operator may want to change something.
    Notice,
    /// Clients are refused, or data is at risk.
    Alarm,
}

/// The most urgent thing to know about a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// The urgency.
    pub level: Level,
    /// One sentence that describes the condition.
    pub text: String,
}

/// Rows of `stats` at both ends of an interval.
pub trait Interval {
    /// Returns the text of `row` at the end of the interval.
    fn text(&self, row: &str) -> Option<&str>;

    /// Returns the text of `row` at the beginning of the interval. Returns `None` for every row if
    /// the server started during the interval.
    fn earlier(&self, row: &str) -> Option<&str>;

    /// Returns the length of the interval in seconds, which is not 0.
    fn seconds(&self) -> f64;

    /// Returns by how much the sum of the counters in `rows` grew during the interval. Returns
    /// `None` if the server has none of these counters, or if the sum fell: then `stats reset` has
    /// set the counters to 0.
    fn growth(&self, rows: &[&str]) -> Option<f64> {
        let after = sum(rows, |row| self.text(row))?;
        let before = sum(rows, |row| self.earlier(row)).unwrap_or(0.0);
        Some(after - before).filter(|growth| *growth >= 0.0)
    }

    /// Returns the growth of the sum of the counters in `rows`, per second. Returns `None` if
    /// [`growth`](Self::growth) does.
    fn rate(&self, rows: &[&str]) -> Option<f64> {
        Some(self.growth(rows)? / self.seconds())
    }

    /// Returns the growth of `part` divided by the growth of `part` and `rest` together. Returns
    /// `None` if [`growth`](Self::growth) returns `None` for either of them, or if neither grew.
    fn share(&self, part: &str, rest: &str) -> Option<f64> {
        let (part, rest) = (self.growth(&[part])?, self.growth(&[rest])?);
        (part + rest > 0.0).then(|| part / (part + rest))
    }
}

/// Returns the sum of the rows that are numbers, or `None` if no row is a number.
fn sum<'t>(rows: &[&str], text: impl Fn(&str) -> Option<&'t str>) -> Option<f64> {
    let numbers = rows.iter().filter_map(|row| number(text(row)?));
    numbers.fold(None, |sum, number| Some(sum.unwrap_or(0.0) + number))
}

/// Parses a number. Returns `None` for other text, and for infinities and NaN.
pub fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

/// The largest age of acknowledged, unsynced writes that raises no alarm, in milliseconds. If the
/// limit from [`OLD_INTERVALS`] is larger, that limit applies instead.
const OLD_UNSYNCED_MS: u64 = 5000;
/// The largest age of unsynced writes that raises no alarm, as a multiple of the sync interval. In
/// normal operation, the age grows to about one interval before each sync.
const OLD_INTERVALS: u64 = 2;

/// The largest step of the wall clock that causes no notice, in milliseconds.
const CLOCK_OFF_MS: u64 = 2000;

impl Condition {
    /// Returns the most urgent condition of a server in `interval`.
    pub fn of(interval: &dyn Interval) -> Condition {
        let grew = |row: &str| interval.growth(&[row]).is_some_and(|growth| growth > 0.0);
        let alarm = |text: String| Condition { level: Level::Alarm, text };
        let notice = |text: String| Condition { level: Level::Notice, text };
        let unhealthy = interval.text("larder_health").filter(|&health| health != "ok");
        if let Some(health) = unhealthy {
            return alarm(format!("Unhealthy: {health}. The log says more."));
        }
        if interval.text("accepting_conns") == Some("0") || grew("rejected_connections") {
            return alarm("Connections are refused: raise the limit of connections.".to_owned());
        }
        if grew("store_no_memory") {
            return alarm("Writes are refused, because no space is left: raise the memory limit or enlarge the store.".to_owned());
        }
        // Without durability, no write waits for a sync, so the age of unsynced writes raises no
        // alarm.
        let waits = interval.text("larder_durability") != Some("none");
        let whole = |row: &str| interval.text(row).and_then(|text| text.parse::<u64>().ok());
        let sync_interval = whole("larder_sync_interval_ms").unwrap_or(0);
        let old = OLD_UNSYNCED_MS.max(sync_interval.saturating_mul(OLD_INTERVALS));
        if let Some(age) = whole("larder_unsynced_ms").filter(|&age| waits && age > old) {
            let seconds = age / 1000;
            return alarm(format!("The device is late: acknowledged writes wait for {seconds} s."));
        }
        if grew("larder_limiters_evicted") {
            return alarm("Rate limiters are evicted: raise the memory limit.".to_owned());
        }
        if let Some(off) = whole("larder_clock_off_ms").filter(|&off| off > CLOCK_OFF_MS) {
            let seconds = off / 1000;
            return notice(format!(
                "The wall clock was stepped by {seconds} s: absolute expiry times are off by this \
                 until a restart."
            ));
        }
        if grew("store_too_large") {
            return notice(
                "Some values are refused, because they are too large: raise the largest item size."
                    .to_owned(),
            );
        }
        if grew("evictions") {
            let rate = interval.rate(&["evictions"]).unwrap_or_default();
            return Condition {
                level: Level::Good,
                text: format!(
                    "All is well. Space is full: {rate:.0} items per second are evicted."
                ),
            };
        }
        Condition { level: Level::Good, text: "All is well.".to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Rows<'a> {
        texts: &'a [(&'a str, &'a str)],
        /// Names of the rows that have grown, separated by spaces.
        grown: &'a str,
    }

    impl Rows<'_> {
        fn has_grown(&self, row: &str) -> bool {
            self.grown.split(' ').any(|name| name == row)
        }
    }

    impl Interval for Rows<'_> {
        fn text(&self, row: &str) -> Option<&str> {
            let text = self.texts.iter().find(|(name, _)| *name == row).map(|(_, text)| *text);
            text.or_else(|| self.has_grown(row).then_some("9"))
        }

        fn earlier(&self, row: &str) -> Option<&str> {
            self.has_grown(row).then_some("1")
        }

        fn seconds(&self) -> f64 {
            2.0
        }
    }

    fn condition(texts: &[(&str, &str)], grown: &str) -> (Level, String) {
        let Condition { level, text } = Condition::of(&Rows { texts, grown });
        (level, text)
    }

    #[test]
    fn the_most_urgent_condition_is_told() {
        assert_eq!(condition(&[], ""), (Level::Good, "All is well.".to_owned()));
        let both = condition(&[("larder_health", "lane 0: out of space")], "evictions");
        assert_eq!(
            both,
            (Level::Alarm, "Unhealthy: lane 0: out of space. The log says more.".to_owned())
        );
        let full = condition(&[("larder_health", "ok")], "evictions");
        assert_eq!(full.0, Level::Good);
        assert!(full.1.contains(" 4 items per second"), "{}", full.1);
        let refused = condition(&[], "evictions store_too_large");
        assert!(refused.0 == Level::Notice && refused.1.contains("too large"), "{}", refused.1);
        assert_eq!(condition(&[("accepting_conns", "0")], "").0, Level::Alarm);
        assert_eq!(condition(&[("accepting_conns", "1")], "").0, Level::Good);
        assert!(condition(&[("larder_unsynced_ms", "7500")], "").1.contains("7 s"));
        assert_eq!(condition(&[("larder_unsynced_ms", "500")], "").0, Level::Good);
        let careless = [("larder_unsynced_ms", "7500"), ("larder_durability", "none")];
        assert_eq!(condition(&careless, "").0, Level::Good);
        let rare = |age| [("larder_sync_interval_ms", "60000"), ("larder_unsynced_ms", age)];
        assert_eq!(condition(&rare("60900"), "").0, Level::Good, "a commit is just being made");
        assert!(condition(&rare("120001"), "").1.contains("120 s"));
        let often = [("larder_sync_interval_ms", "50"), ("larder_unsynced_ms", "900")];
        assert_eq!(condition(&often, "").0, Level::Good, "one slow commit");
        let huge = [("larder_sync_interval_ms", "18446744073709551615"), rare("60900")[1]];
        assert_eq!(condition(&huge, "").0, Level::Good);
        let stepped = condition(&[("larder_clock_off_ms", "3600999")], "evictions");
        assert!(stepped.0 == Level::Notice && stepped.1.contains(" 3600 s:"), "{}", stepped.1);
        assert_eq!(condition(&[("larder_clock_off_ms", "2000")], "").0, Level::Good);
    }
}
