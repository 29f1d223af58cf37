//! Limits that a request names as a policy.

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
        ("ma a Qstrict D4 r w", "HD r1 w0"),
        ("ma a Qstrict D0 r t", "HD r1 t60"),
        ("ma a Qstrict r", "HD r0"),
        ("ma a Qstrict r w", "NS r0 w60000"),
        ("ma b Qshadow D6 r w", "HD r5 w-1"),
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
