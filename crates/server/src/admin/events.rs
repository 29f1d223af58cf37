//! Finds the events that the page's charts mark: the start, the beginning of evictions, changes of
//! a device's state, and reloads of the settings.

use std::sync::Arc;

use super::history::Event;
use super::series::Span;
use crate::condition::Interval;
use crate::server::Running;
use crate::settings::Settings;

/// Time without evictions after which the next eviction counts as the beginning of evictions, in
/// milliseconds.
const CALM: u64 = 60_000;

/// The facts from earlier samples that the next sample is compared with.
#[derive(Debug, Default)]
pub(super) struct EventFinder {
    settings: Option<Arc<Settings>>,
    /// The time of the last sample with evictions, in milliseconds since the Unix epoch.
    evicted: Option<u64>,
}

impl EventFinder {
    /// Compares a sample with the previous one, and calls `note` with the events in between.
    pub(super) fn look(&mut self, span: Span<'_>, running: &Running, note: &mut dyn FnMut(Event)) {
        let settings = running.settings();
        match self.settings.replace(Arc::clone(&settings)) {
            None => note(started(span)),
            Some(before) if !Arc::ptr_eq(&before, &settings) => note(Event {
                time: span.to.time,
                name: "reload",
                text: "The settings were read again.".to_owned(),
            }),
            Some(_) => {}
        }
        self.compare(span, note);
    }

    fn compare(&mut self, span: Span<'_>, note: &mut dyn FnMut(Event)) {
        let time = span.to.time;
        if span.growth(&["evictions"]).is_some_and(|growth| growth > 0.0) {
            let was_calm = self.evicted.is_none_or(|last| time.saturating_sub(last) > CALM);
            self.evicted = Some(time);
            if was_calm {
                let text = "Evictions begin: space is full.".to_owned();
                note(Event { time, name: "eviction_begins", text });
            }
        }
        let is_state = |row: &str| row.starts_with("larder_lane_") && row.ends_with("_state");
        for (row, state) in span.to.texts(is_state) {
            if span.from.text(row) == Some(state) {
                continue;
            }
            let lane = row.trim_end_matches("_state");
            let device = span.to.text(&format!("{lane}_device")).unwrap_or(lane);
            let name = match state {
                "ok" => "device_ok",
                "draining" => "drain_begins",
                "drained" => "drain_ends",
                _ => "device_failed",
            };
            note(Event { time, name, text: format!("{device}: {state}.") });
        }
    }
}

fn started(span: Span<'_>) -> Event {
    let number = |row: &str| span.to.text(row).unwrap_or("0").to_owned();
    let text = match number("larder_recovered_items").as_str() {
        "0" => "The server started.".to_owned(),
        items => format!(
            "The server started with {items} items, recovered in {} ms.",
            number("larder_recovery_ms")
        ),
    };
    Event { time: span.to.time, name: "start", text }
}

#[cfg(test)]
mod tests {
    use super::super::series::tests::rows;
    use super::*;

    fn events(
        finder: &mut EventFinder,
        from: (u64, &[(&str, &str)]),
        to: (u64, &[(&str, &str)]),
    ) -> Vec<&'static str> {
        let (from, to) = (rows(from.0, from.1), rows(to.0, to.1));
        let mut names = Vec::new();
        finder.compare(Span { from: &from, to: &to }, &mut |event| names.push(event.name));
        names
    }

    #[test]
    fn evictions_begin_after_a_calm() {
        let mut finder = EventFinder::default();
        let evicted = |count| [("evictions", count)];
        let mut look = |time, from, to| {
            events(&mut finder, (time, &evicted(from)), (time + 1000, &evicted(to)))
        };
        assert_eq!(look(0, "0", "0"), [""; 0]);
        assert_eq!(look(1000, "0", "5"), ["eviction_begins"]);
        assert_eq!(look(2000, "5", "9"), [""; 0]);
        assert_eq!(look(63_000, "9", "10"), ["eviction_begins"]);
    }

    #[test]
    fn a_device_that_changes_its_state_is_noticed() {
        let mut finder = EventFinder::default();
        let state = |state| [("larder_lane_0_state", state), ("larder_lane_0_device", "/d")];
        let mut look = |from, to| events(&mut finder, (0, &state(from)), (1000, &state(to)));
        assert_eq!(look("ok", "ok"), [""; 0]);
        assert_eq!(look("ok", "failing: no space"), ["device_failed"]);
        assert_eq!(look("failing: no space", "ok"), ["device_ok"]);
        assert_eq!(look("ok", "draining"), ["drain_begins"]);
        assert_eq!(look("draining", "drained"), ["drain_ends"]);
    }
}
