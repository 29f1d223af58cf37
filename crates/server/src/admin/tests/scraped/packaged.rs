//! The dashboard and the alerts in `monitoring/`, against a real server, promtool and Prometheus.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::{Full, Prometheus, is_here, samples};

/// Returns the path of a file in `monitoring/`.
pub(super) fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../monitoring").join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(file(name)).unwrap()
}

fn dashboard() -> Value {
    serde_json::from_str(&text("grafana.json")).unwrap()
}

/// Calls `visit` with every object inside a value.
fn each_object(value: &Value, visit: &mut dyn FnMut(&serde_json::Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            visit(object);
            object.values().for_each(|value| each_object(value, visit));
        }
        Value::Array(list) => list.iter().for_each(|value| each_object(value, visit)),
        _ => {}
    }
}

/// Returns the queries of all panels and annotations.
fn queries() -> Vec<String> {
    let mut queries = Vec::new();
    each_object(&dashboard(), &mut |object| {
        queries.extend(object.get("expr").map(|expr| expr.as_str().unwrap().to_owned()));
    });
    assert!(queries.len() > 40, "{queries:?}");
    queries
}

/// Returns the names of metrics in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("larder_") || word.starts_with("memcached_")).collect()
}

/// A server that has every metric.
fn complete(name: &str) -> Full {
    let full = Full::with_tiers(name, &[Some("fast"), Some("big")]);
    full.use_it();
    full
}

#[test]
fn every_name_in_the_dashboard_and_the_alerts_is_on_metrics() {
    let full = complete("packaged");
    let metrics = full.metrics();
    let shown: BTreeSet<&str> =
        samples(&metrics).keys().filter_map(|sample| sample.split('{').next()).collect();
    let (dashboard, alerts, tests) =
        (text("grafana.json"), text("alerts.yml"), text("alerts-test.yml"));
    for (place, text, least) in
        [("dashboard", &dashboard, 40), ("alerts", &alerts, 15), ("tests", &tests, 15)]
    {
        // `larder_health` is only a row of `stats`, but a description may name it.
        let names: BTreeSet<&str> =
            names(text).into_iter().filter(|name| *name != "larder_health").collect();
        assert!(names.len() >= least, "{place}: {names:?}");
        let unknown: Vec<_> = names.difference(&shown).collect();
        assert!(unknown.is_empty(), "{place}: {unknown:?}");
    }
}

#[test]
fn the_dashboard_is_of_one_piece() {
    let dashboard = dashboard();
    let mut ids = BTreeSet::new();
    let mut cells = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let at = |part: &str| panel["gridPos"][part].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{panel}");
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(cells.insert((x, y)), "panels overlap: {panel}");
            }
        }
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let variables: Vec<_> = variables.iter().map(|variable| variable["name"].as_str()).collect();
    assert_eq!(variables, [Some("datasource"), Some("job"), Some("instance")]);
    each_object(&dashboard, &mut |object| {
        if let Some(uid) = object.get("datasource").and_then(|source| source.get("uid")) {
            assert_eq!(uid, "${datasource}");
        }
    });
    for query in queries() {
        let selectors = query.matches('{').count();
        assert_eq!(query.matches("instance=~\"$instance\"").count(), selectors, "{query}");
    }
}

#[test]
fn every_alert_has_a_test_that_fires_and_one_that_does_not() {
    fn after<'t>(text: &'t str, word: &'t str) -> impl Iterator<Item = (&'t str, &'t str)> {
        text.split(word).skip(1).filter_map(|rest| rest.split_once('\n'))
    }
    let (alerts, tests) = (text("alerts.yml"), text("alerts-test.yml"));
    let alerts: BTreeSet<&str> = after(&alerts, "- alert: ").map(|(name, _)| name.trim()).collect();
    let (mut firing, mut silent) = (BTreeSet::new(), BTreeSet::new());
    for (name, rest) in after(&tests, "alertname: ") {
        let expected = rest.trim_start();
        assert!(expected.starts_with("exp_alerts:"), "{name}: {expected}");
        let is_silent = expected.starts_with("exp_alerts: []");
        let kind = if is_silent { &mut silent } else { &mut firing };
        kind.insert(name.trim());
    }
    assert!(alerts.len() >= 10);
    assert_eq!((&firing, &silent), (&alerts, &alerts));
}

#[test]
fn promtool_accepts_the_alerts_and_their_tests() {
    if !is_here("promtool", "--version") {
        return;
    }
    for (what, name) in [("check", "alerts.yml"), ("test", "alerts-test.yml")] {
        let output = Command::new("promtool").args([what, "rules"]).arg(file(name)).output();
        let output = output.unwrap();
        let words = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(output.status.success() && words.contains("SUCCESS"), "{words}");
    }
}

#[test]
fn every_query_of_the_dashboard_has_a_value_and_no_alert_fires() {
    let full = complete("queries");
    if !is_here("prometheus", "--version") {
        return;
    }
    let prometheus = Prometheus::start("packaged", &full);
    let filled = |query: &str| {
        query
            .replace("$__rate_interval", "1m")
            .replace("\"$job\"", "\"larder\"")
            .replace("\"$instance\"", "\".*\"")
    };
    for query in queries() {
        // One query marks the restarts of the server on the charts, and ends in `> 0`. This server
        // was not restarted, so the query has a value only without this condition.
        let query = query.strip_suffix(" > 0").unwrap_or(&query);
        prometheus.wait_for(&filled(query));
    }
    let rules = prometheus.ask("/api/v1/rules").unwrap();
    let rules = rules["data"]["groups"][0]["rules"].as_array().unwrap();
    assert!(rules.len() >= 10, "{rules:?}");
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
        assert_eq!(rule["state"], "inactive", "{rule}");
    }
}
