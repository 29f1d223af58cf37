//! Tests which keys of requests are sampled, and with which weight.

use super::{Client, NOW, worker_on};
use crate::keys::report;
use larder_engine::{Engine, Options};
use serde_json::Value;
use std::task::Waker;

/// Calls `send` with a client while keys are sampled. Returns the hit ratio of the samples, and the
/// estimated number of reads.
fn sampled(send: impl FnOnce(&mut Client<'_>)) -> (f64, f64) {
    let engine = Engine::open(Options { memory: 64 << 20, ..Options::default() }).unwrap();
    let mut worker = worker_on(&engine, Waker::noop().clone());
    worker.context.hot_keys.set_on(true);
    send(&mut Client::new(&mut worker));
    let context = &worker.context;
    let now_ms = u64::from(NOW) * 1000;
    let report = report(&context.hot_keys, &context.sampling, &engine, now_ms);
    let report: Value = serde_json::to_value(report).unwrap();
    let all = &report["prefixes"];
    let [ratio, per_second, seconds] =
        [&all["hit_ratio"], &all["reads_per_second"], &report["requests"]["seconds"]]
            .map(|value| value.as_f64().unwrap());
    (ratio, per_second * seconds)
}

#[test]
fn keys_that_are_not_answered_yet_are_not_sampled() {
    let (ratio, reads) = sampled(|client| {
        // The value of `long` is longer than the output's limit. So each retrieval below is
        // interrupted after its first key, before the other keys are answered.
        client.send(&[b"set long 0 0 100000\r\n".to_vec(), vec![b'x'; 100_000]].concat());
        client.send(b"\r\nset a 0 0 1\r\n1\r\n");
        let get = format!("get long{}\r\n", " a".repeat(99));
        for _ in 0..2000 {
            client.ask(get.as_bytes());
        }
    });
    assert_eq!(ratio, 1.0, "a key was sampled as a miss before it was answered");
    assert!((reads / 200_000.0 - 1.0).abs() < 0.1, "{reads}");
}

#[test]
fn a_refused_request_favours_no_key() {
    let (ratio, reads) = sampled(|client| {
        for _ in 0..5000 {
            client.ask("bogus\r\nget a\r\n".repeat(20).as_bytes());
        }
    });
    assert_eq!(ratio, 0.0);
    // With about 1560 samples, five standard deviations are 13 %.
    assert!((reads / 100_000.0 - 1.0).abs() < 0.13, "{reads}");
}
