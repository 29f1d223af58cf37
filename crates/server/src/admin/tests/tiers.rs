//! The heat maps of the devices of real servers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::scraped::Full;
use super::{get, server};
use crate::stats;

fn answer(server: &crate::server::Server, kind: &str) -> Value {
    let (code, body) = get(server, &format!("/v1/tiers?kind={kind}"));
    assert_eq!(code, 200);
    serde_json::from_str(&body).unwrap()
}

/// Returns the number of calls of each device in all steps.
fn calls(answer: &Value) -> Vec<u64> {
    let devices = answer["devices"].as_array().unwrap().iter();
    let cells = devices.map(|device| device["cells"].as_array().unwrap().iter());
    cells.map(|cells| cells.map(|cell| cell[2].as_u64().unwrap()).sum()).collect()
}

#[test]
fn calls_of_both_tiers_appear_within_a_few_seconds() {
    let full = Full::with_tiers("heat", &[Some("fast"), Some("big")]);
    let first = answer(&full.server, "write");
    assert_eq!(
        (first["span"].as_u64(), first["bounds"].as_array().unwrap().len()),
        (Some(150), 22)
    );
    // The first step ends three seconds after the server's first sample, so the loop runs for about
    // that long.
    let mut client = TcpStream::connect(full.server.addresses()[0]).unwrap();
    let begun = Instant::now();
    let written = loop {
        client.write_all(b"set a 0 0 1\r\n1\r\n").unwrap();
        client.read_exact(&mut [0; 8]).unwrap();
        let answer = answer(&full.server, "write");
        let times = answer["times"].as_array().unwrap();
        if times.len() > 1 && calls(&answer)[0] > 0 {
            break answer;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{answer:#}");
        thread::sleep(Duration::from_millis(50));
    };
    let times: Vec<u64> =
        written["times"].as_array().unwrap().iter().map(|time| time.as_u64().unwrap()).collect();
    assert!(times.is_sorted_by(|from, to| from < to), "{times:?}");
    let [fast, lower] = &written["devices"].as_array().unwrap()[..] else { panic!("{written:#}") };
    assert_eq!((&fast["lower"], &lower["lower"]), (&Value::Bool(false), &Value::Bool(true)));
    assert!(fast["device"].as_str().unwrap().contains("heatfast"), "{fast}");
    assert!(lower["device"].as_str().unwrap().contains("heatbig"), "{lower}");
    let mut writes = 0;
    stats::group(&full.server.running, b"durability", &mut |name, value| {
        if name == "device:0:write:count" {
            writes = value.to_string().parse().unwrap();
        }
    });
    assert!(calls(&written)[0] <= writes, "{written:#}");
    assert_eq!(get(&full.server, "/v1/tiers").0, 400);
    assert_eq!(get(&full.server, "/v1/tiers?kind=all").0, 400);
}

#[test]
fn a_server_without_a_store_has_no_devices() {
    let server = server();
    assert!(calls(&answer(&server, "read")).is_empty());
}
