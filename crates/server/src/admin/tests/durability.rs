//! The histograms of real servers, with devices of two tiers and without a store.

use serde_json::Value;

use super::scraped::Full;
use super::{get, server};
use crate::stats;

fn answer(server: &crate::server::Server) -> Value {
    let (code, body) = get(server, "/v1/durability");
    assert_eq!(code, 200);
    serde_json::from_str(&body).unwrap()
}

#[test]
fn both_tiers_of_a_lane_are_measured_apart() {
    let full = Full::with_tiers("measured", &[Some("fast"), Some("big")]);
    full.use_it();
    let mut counts = std::collections::BTreeMap::new();
    stats::group(&full.server.running, b"durability", &mut |name, value| {
        counts.insert(name.to_owned(), value.to_string().parse::<u64>().unwrap());
    });
    for kind in ["read", "write", "sync"] {
        let [fast, lower] = ["0", "0:lower"].map(|of| counts[&format!("device:{of}:{kind}:count")]);
        // Each device was at least read and synced, and its superblock or label was written. So no
        // count is 0.
        assert!(fast > 0 && lower > 0, "{kind}: {counts:?}");
        // The commits of these few records write to the fast device only.
        assert!(kind == "read" || lower < fast, "{kind}: {counts:?}");
    }
    let metrics = full.metrics();
    let devices = |kind: &str| {
        let begin = format!("larder_device_{kind}_seconds_count{{lane=\"0\",device=\"");
        let lines = metrics.lines().filter_map(|line| line.strip_prefix(&begin));
        lines.map(|line| line.split("-me\\").next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for kind in ["read", "write", "sync"] {
        let [fast, lower] = &devices(kind)[..] else { panic!("{:?}", devices(kind)) };
        assert!(fast.ends_with("measuredfast") && lower.ends_with("measuredbig"), "{fast} {lower}");
    }
    let answer = answer(&full.server);
    let [lane] = &answer["lanes"].as_array().unwrap()[..] else { panic!("{answer:#}") };
    assert_eq!((&lane["lane"], answer["bounds"].as_array().unwrap().len()), (&0.into(), 25));
    for histogram in ["commits", "syncs", "lower_syncs"] {
        let ever = &lane[histogram]["ever"];
        let counts = ever["counts"].as_array().unwrap().iter().map(|count| count.as_u64().unwrap());
        assert_eq!(Some(counts.sum()), ever["count"].as_u64(), "{histogram}");
    }
    assert!(lane["syncs"]["ever"]["count"].as_u64().unwrap() >= counts["device:0:sync:count"]);
    assert!(lane["lower_device"].as_str().unwrap().contains("measuredbig"));
    // The store is not in sync mode, so no reply waits for a commit.
    assert_eq!(answer["waits"]["ever"]["count"], 0);
}

#[test]
fn a_server_without_a_store_has_no_lanes_to_measure() {
    let server = server();
    assert_eq!(answer(&server)["lanes"], Value::Array(Vec::new()));
    assert!(!get(&server, "/metrics").1.contains("larder_device_sync"));
}
