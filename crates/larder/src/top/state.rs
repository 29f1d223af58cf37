//! One sentence about a server: whether all is well, and if not, what to do.

use serde::Serialize;

use super::figures::Figures;
use super::sample::Sample;

/// How urgent a state is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    #[default]
    Good,
    /// The server works, but an operator may want to change something.
    Notice,
    /// Clients are refused, or data is at risk.
    Alarm,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct State {
    pub(super) level: Level,
    pub(super) text: String,
}

/// The age of acknowledged, unsynced writes, in milliseconds, that is too old.
const OLD_UNSYNCED_MS: u64 = 5000;

/// Returns the most urgent thing to know about a server. `growth` is by how much a counter grew in
/// the interval.
pub(super) fn of(last: &Sample, figures: &Figures, growth: &dyn Fn(&str) -> f64) -> State {
    let alarm = |text: String| State { level: Level::Alarm, text };
    let notice = |text: String| State { level: Level::Notice, text };
    if let Some(health) = last.text("larder_health").filter(|&health| health != "ok") {
        return alarm(format!("Unhealthy: {health}."));
    }
    if last.text("accepting_conns") == Some("0") {
        return alarm("All connections are in use: raise the limit of connections.".to_owned());
    }
    if growth("rejected_connections") > 0.0 {
        return alarm("Connections are refused: raise the limit of connections.".to_owned());
    }
    if growth("store_no_memory") > 0.0 {
        return alarm("Writes are refused, because memory is full: raise its limit.".to_owned());
    }
    if let Some(age) = figures.unsynced_ms.filter(|&age| age > OLD_UNSYNCED_MS) {
        let seconds = age / 1000;
        return alarm(format!("The device is late: acknowledged writes wait for {seconds} s."));
    }
    if growth("larder_limiters_evicted") > 0.0 {
        return alarm("Rate limiters are evicted: raise the memory limit.".to_owned());
    }
    if growth("evictions") > 0.0 {
        let rate = figures.evictions_per_second.unwrap_or_default();
        return notice(format!("Memory is full: {rate:.0} items per second are evicted."));
    }
    if growth("store_too_large") > 0.0 {
        return notice("Some values are too large: see the limit of an item's size.".to_owned());
    }
    State { level: Level::Good, text: "All is well.".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn state(rows: &[(&str, &str)], grown: &str, figures: &Figures) -> State {
        let owned = rows.iter().map(|&(row, value)| (row.to_owned(), value.to_owned()));
        let sample = Sample::new(Instant::now(), owned.collect());
        of(&sample, figures, &|row| f64::from(u8::from(row == grown)))
    }

    #[test]
    fn the_most_urgent_state_is_told() {
        let figures = Figures::default();
        assert_eq!(state(&[], "", &figures).text, "All is well.");
        let both = state(&[("larder_health", "lane 0: out of space")], "evictions", &figures);
        assert_eq!((both.level, &*both.text), (Level::Alarm, "Unhealthy: lane 0: out of space."));
        assert_eq!(state(&[("larder_health", "ok")], "evictions", &figures).level, Level::Notice);
        assert_eq!(state(&[("accepting_conns", "0")], "", &figures).level, Level::Alarm);
        assert_eq!(state(&[("accepting_conns", "1")], "", &figures).level, Level::Good);
        let late = Figures { unsynced_ms: Some(7500), ..Figures::default() };
        assert!(state(&[], "", &late).text.contains("7 s"));
    }
}
