//! Tests of the counters of commands. Each line of `counters.txt` has the tested requests, then
//! `=>`, then the counters that memcached 1.6.45 raised, with the amounts. Before the tested
//! requests, a line may have requests that prepare the empty cache, followed by `|`.

use super::table::bytes;
use super::{Client, worker};
use larder_engine::Totals;
use std::fmt::Write;

fn counted(totals: &Totals) -> String {
    let counters = [
        ("cmd_get", totals.cmd_get),
        ("get_hits", totals.get_hits),
        ("get_misses", totals.get_misses),
        ("get_expired", totals.get_expired),
        ("cmd_set", totals.cmd_set),
        ("cmd_touch", totals.cmd_touch),
        ("touch_hits", totals.touch_hits),
        ("touch_misses", totals.touch_misses),
        ("delete_hits", totals.delete_hits),
        ("delete_misses", totals.delete_misses),
        ("incr_hits", totals.incr_hits),
        ("incr_misses", totals.incr_misses),
        ("decr_hits", totals.decr_hits),
        ("decr_misses", totals.decr_misses),
        ("cas_hits", totals.cas_hits),
        ("cas_misses", totals.cas_misses),
        ("cas_badval", totals.cas_badval),
        ("store_too_large", totals.store_too_large),
    ];
    let raised = counters.into_iter().filter(|&(_, count)| count != 0);
    raised.map(|(name, count)| format!(" {name}={count}")).collect()
}

#[test]
fn counters_match_memcached() {
    let mut worker = worker();
    let mut wrong = String::new();
    for line in include_str!("counters.txt").lines() {
        let (sent, expected) = line.split_once(" =>").unwrap();
        let (before, request) = sent.split_once(" | ").unwrap_or(("", sent));
        let engine = worker.session.engine().clone();
        Client::new(&mut worker).send(b"flush_all\r\n");
        Client::new(&mut worker).send(&bytes(before));
        let earlier = engine.stats().totals;
        Client::new(&mut worker).send(&bytes(request));
        let counted = counted(&engine.stats().totals.since(&earlier));
        if counted != expected {
            let _ = writeln!(wrong, "{sent}\n  {expected}\n  but{counted}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
