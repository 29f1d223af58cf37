//! Polite clients beside crowds of clients that are slow, rude or greedy. The server must answer
//! the polite clients without an error and without closing their connections. Its process must stay
//! within the memory budget. Runs the real binary. `larder bench hostile` measures how much longer
//! the polite clients wait beside a crowd than alone.

mod harness;

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use harness::{Process, assert_within_budget, serve};
use larder_bench::hostile::{Crowd, CrowdKind};
use larder_bench::{Lengths, Load, Mix, Pacing, Shape, Summary};
use larder_client::{Address, Client};

const MEMORY: u64 = 64;

/// A server, and the address at which its polite clients connect.
struct Company {
    server: Process,
    address: Address,
}

impl Company {
    fn new() -> Company {
        let mut command = serve();
        command.args(["-m", &MEMORY.to_string(), "-c", "5000"]).stdout(Stdio::null());
        let mut server = Process::spawn(&mut command);
        let line = server.event("listening");
        let address = line.rsplit_once("address=").expect("it says where").1;
        let address = Address::Tcp(address.to_owned());
        Company { server, address }
    }

    /// Returns the statistics that show why the server closed connections.
    fn closed(&self) -> Vec<(String, String)> {
        let client = Client::connect_to(&self.address, larder_client::Options::default());
        let rows = client.and_then(|mut client| client.stats(None)).unwrap_or_default();
        let why = ["read_buf_oom", "larder_values_cut", "larder_buffer_bytes", "store_no_memory"];
        rows.into_iter().filter(|(name, _)| why.contains(&name.as_str())).collect()
    }

    /// Runs polite clients for two seconds. A cut connection or a wrong answer fails this test.
    fn polite(&self) -> Summary {
        let shape = Shape {
            mix: "get=50,set=50".parse::<Mix>().expect("a mix"),
            keys: 10_000,
            value_lengths: Lengths { min: 100, max: 100 },
            ..Shape::default()
        };
        let mut load = Load::new(self.address.clone());
        load.connections = 20;
        load.pacing = Pacing::Constant(1000.0);
        load.duration = Some(Duration::from_secs(2));
        load.warm_up = Duration::ZERO;
        load.verify = true;
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    assert_within_budget(&self.server.child, MEMORY);
                    // Samples memory continuously, because no event marks the moment of its peak.
                    thread::sleep(Duration::from_millis(10));
                }
            });
            let summary = load.run(shape);
            done.store(true, Relaxed);
            summary.expect("polite clients are served")
        })
    }
}

/// Lets only one test run at a time, because each crowd needs all processors.
static ALONE: Mutex<()> = Mutex::new(());

fn beside(kinds: &[CrowdKind]) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let company = Company::new();
    let crowds: Vec<(CrowdKind, Crowd)> = kinds
        .iter()
        .map(|&kind| (kind, Crowd::start(kind, &company.address).expect("it connects")))
        .collect();
    let summary = company.polite();
    assert_eq!((summary.errors, summary.first_error), (0, None), "beside {kinds:?}");
    assert_eq!(summary.unanswered, 0, "beside {kinds:?}");
    for (kind, crowd) in crowds {
        let outcome = crowd.end();
        assert_eq!(outcome.cut, 0, "{kind:?}: {outcome:?}, {:?}", company.closed());
        // Incomplete sets occupy the memory for arriving values, so large values beside them may be
        // refused.
        if !(kind == CrowdKind::LargeValues && kinds.contains(&CrowdKind::HalfSets)) {
            assert_eq!(outcome.refused, 0, "{kind:?}: {outcome:?}");
        }
    }
}

#[test]
fn announced_values_take_no_memory_from_others() {
    beside(&[CrowdKind::Announce]);
    beside(&[CrowdKind::HalfSets]);
}

#[test]
fn polite_clients_are_not_closed_for_the_memory_of_others() {
    beside(&[CrowdKind::HalfLines]);
    beside(&[CrowdKind::Deaf]);
    beside(&[CrowdKind::Trickle]);
}

#[test]
fn clients_that_read_receive_whole_values() {
    beside(&[CrowdKind::LargeValues]);
}

#[test]
fn a_full_cache_refuses_no_sets() {
    beside(&[CrowdKind::Fill]);
}

#[test]
fn expensive_commands_are_bounded() {
    beside(&[CrowdKind::Flush]);
    beside(&[CrowdKind::Stats]);
    beside(&[CrowdKind::Dumps]);
}

#[test]
fn polite_clients_are_served_beside_all_crowds_together() {
    beside(&CrowdKind::ALL);
}
