//! Tests of requests that name a policy.

use super::{Client, worker};
use crate::policies::Policy;
use larder_engine::limit::Limit;

#[test]
fn a_policy_decides_and_counts() {
    let mut worker = worker();
    let limit = Limit::fixed(5, 60_000_000_000);
    let shadow = Policy { shadow: true, ..Policy::new("shadow", limit) };
    worker.context.policies().replace(&[Policy::new("strict", limit), shadow]);
    worker.policies.refresh();
    let mut client = Client::new(&mut worker);
    for (request, reply) in [
        ("ma a Qstrict D4 r w", "HD r1 w0 B5"),
        ("ma a Qstrict D0 r t", "HD r1 t60 B5"),
        ("ma a Qstrict r v", "VA 1 r0 B5\r\n5"),
        ("ma a Qstrict r w q", "NS r0 w60000 B5"),
        ("ma b Qshadow D6 r w", "HD r5 w0 B5 x1"),
        ("ma b Qnone", "CLIENT_ERROR unknown policy"),
    ] {
        let reply = format!("{reply}\r\n");
        let got = client.ask(format!("{request}\r\n").as_bytes());
        assert_eq!(String::from_utf8_lossy(&got), reply, "{request}");
    }
    drop(client);
    let counts = |name: &[u8]| worker.policies.named(name).unwrap().counters.totals();
    assert_eq!(counts(b"strict").map(|(_, count)| count), [1, 1, 1, 0], "a look is not counted");
    assert_eq!(counts(b"shadow").map(|(_, count)| count), [0, 0, 0, 1]);
}

/// A policy for a prefix must also apply to plain increments, in all dialects. Such a policy counts
/// the increments and sets the expiry of new counters, but never refuses an increment.
#[test]
fn increments_below_a_prefix_create_counters_that_expire() {
    let mut worker = worker();
    let policy = |name: &str, prefix: &str, window| Policy {
        prefix: Some(prefix.to_owned()),
        ..Policy::new(name, Limit::fixed(2, window))
    };
    let minute = 60_000_000_000;
    let policies = [policy("all", "rl:", minute), policy("day", "rl:day:", 1440 * minute)];
    worker.context.policies().replace(&policies);
    worker.policies.refresh();
    let mut client = Client::new(&mut worker);
    for (request, reply) in [
        ("incr rl:a 2", "2"),
        ("incr rl:a 1", "3"),
        ("mg rl:a t v", "VA 1 t60\r\n3"),
        ("ma rl:b D3 v t", "VA 1 t60\r\n3"),
        ("ma rl:c D3 N7 J9 v t", "VA 1 t7\r\n9"),
        ("mg rl:c t", "HD t7"),
        ("decr rl:d 1", "NOT_FOUND"),
        ("ma rl:d MD", "NF"),
        ("ma rl:d C5", "NF"),
        ("incr other 1", "NOT_FOUND"),
        ("incr rl:day:a 1", "1"),
        ("mg rl:day:a t", "HD t86400"),
        // In base64, `cmw6ZQ==` is `rl:e`.
        ("ma cmw6ZQ== b v", "VA 1\r\n1"),
    ] {
        let got = client.ask(format!("{request}\r\n").as_bytes());
        assert_eq!(String::from_utf8_lossy(&got), format!("{reply}\r\n"), "{request}");
    }
    drop(client);
    // A binary increment of the key `rl:f` by 5. Its expiry time means that a missing counter must
    // not be created, but the policy creates one.
    let mut packet = vec![0x80, 5, 0, 4, 20, 0, 0, 0, 0, 0, 0, 24];
    packet.resize(31, 0);
    packet.push(5);
    packet.resize(40, 0);
    packet.extend([0xFF; 4]);
    packet.extend(b"rl:f");
    let answer = Client::new(&mut worker).ask(&packet);
    assert_eq!(
        (answer[6..8].to_vec(), answer[24..].to_vec()),
        (vec![0; 2], vec![0, 0, 0, 0, 0, 0, 0, 5])
    );
    let counts = |name: &[u8]| worker.policies.named(name).unwrap().counters.totals();
    assert_eq!(counts(b"all").map(|(_, count)| count), [1, 1, 4, 0]);
    assert_eq!(counts(b"day").map(|(_, count)| count), [1, 0, 0, 0]);
}
