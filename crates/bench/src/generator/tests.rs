//! Tests of the generator against servers that stall, lie or leave.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::*;
use crate::workload::{Lengths, Mix, Verb};

/// Runs `serve` for each of the first `connections` clients, each on its own thread.
fn server(
    connections: usize,
    serve: impl Fn(TcpStream) + Clone + Send + 'static,
) -> (Address, Vec<JoinHandle<()>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap().to_string());
    let accept = thread::spawn(move || {
        let threads: Vec<_> = (0..connections)
            .map(|_| {
                let (stream, _) = listener.accept().unwrap();
                stream.set_nodelay(true).unwrap();
                let serve = serve.clone();
                thread::spawn(move || serve(stream))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    (address, vec![accept])
}

/// Calls `answer` with each line, until `answer` returns false or the client leaves.
fn each_line(mut stream: TcpStream, mut answer: impl FnMut(&str, &mut TcpStream) -> bool) {
    let mut pending = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        pending.extend_from_slice(&buffer[..read]);
        while let Some(end) = pending.windows(2).position(|pair| pair == b"\r\n") {
            let line: Vec<u8> = pending.drain(..end + 2).collect();
            if !answer(&String::from_utf8_lossy(&line[..end]), &mut stream) {
                return;
            }
        }
    }
}

/// Runs a server whose connections do not answer during `stall`, counted from the first request of
/// each connection.
fn stalling_server(connections: usize, stall: Range<Duration>) -> (Address, Vec<JoinHandle<()>>) {
    server(connections, move |stream| {
        let mut first = None;
        each_line(stream, |_, stream| {
            let since = first.get_or_insert_with(Instant::now).elapsed();
            if stall.contains(&since) {
                thread::sleep(stall.end - since);
            }
            stream.write_all(b"END\r\n").is_ok()
        });
    })
}

fn small_load(server: Address) -> Load {
    Load {
        connections: 2,
        duration: None,
        requests: Some(100),
        warm_up: Duration::ZERO,
        ..Load::new(server)
    }
}

fn small_shape() -> Shape {
    Shape { keys: 100, value_lengths: Lengths { min: 5, max: 5 }, ..Shape::default() }
}

#[test]
fn a_stall_shows_in_the_open_loop_percentiles() {
    show_a_stall(false);
}

#[test]
fn a_stall_shows_between_the_sockets() {
    show_a_stall(true);
}

fn show_a_stall(wire_times: bool) {
    const STALL: Duration = Duration::from_millis(300);
    let (address, threads) = server(2, |stream| {
        let mut asked = 0;
        each_line(stream, |_, stream| {
            asked += 1;
            if asked == 100 {
                thread::sleep(STALL);
            }
            stream.write_all(b"END\r\n").is_ok()
        });
    });
    let load = Load {
        pacing: Pacing::Constant(1000.0),
        duration: Some(Duration::from_secs(1)),
        requests: None,
        wire_times,
        ..small_load(address)
    };
    let summary = load.run(small_shape()).unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    // Every request that was due counts, including those that waited for the stalled connection.
    assert_eq!(summary.total.requests, 1000);
    assert_eq!(summary.unanswered, 0);
    // In the stall of 300 ms, about 150 of each connection's 500 requests were due. Those due in
    // its first 100 ms, a tenth of all requests, waited longer than 200 ms. Only two requests were
    // in flight when the stall began.
    let stall = STALL.as_micros() as f64;
    assert!(summary.latency.get("p90") > 0.5 * stall, "{:?}", summary.latency);
    assert!(summary.latency.get("p99") > 0.9 * stall, "{:?}", summary.latency);
    assert!(summary.latency.get("p50") < 0.5 * stall, "{:?}", summary.latency);
}

#[test]
fn answers_after_a_run_of_less_than_a_second_are_late() {
    // The connection stops answering in the middle of the run, and answers again after the end of
    // the run.
    let stall = Duration::from_millis(150)..Duration::from_millis(600);
    let (address, threads) = stalling_server(1, stall);
    let load = Load {
        connections: 1,
        pacing: Pacing::Constant(1000.0),
        duration: Some(Duration::from_millis(300)),
        requests: None,
        ..small_load(address)
    };
    let summary = load.run(small_shape()).unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!((summary.per_second.len(), summary.total.requests), (1, 300));
    assert!(summary.answered_late >= 100, "{}", summary.answered_late);
}

#[test]
fn the_seconds_add_up_and_a_stall_is_missing_in_its_own() {
    // Both connections stop answering 1 s after their first request, for 1 s, and then catch up.
    let stall = Duration::from_secs(1)..Duration::from_secs(2);
    let (address, threads) = stalling_server(2, stall);
    let load = Load {
        threads: 2,
        pacing: Pacing::Constant(1000.0),
        duration: Some(Duration::from_millis(2900)),
        requests: None,
        probe: Some(Probe::process(std::process::id())),
        ..small_load(address)
    };
    let summary = load.run(small_shape()).unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let seconds = &summary.per_second;
    assert_eq!((seconds.len(), summary.total.requests), (3, 2900));
    let lengths = [1.0, 1.0, 0.9];
    let answered: f64 = seconds.iter().zip(lengths).map(|(s, l)| s.requests_per_second * l).sum();
    assert_eq!(answered.round() as u64 + summary.answered_late, summary.total.requests);
    // The stall fills `seconds[1]`, so few answers count there. The late answers count in
    // `seconds[2]`.
    assert!(seconds[1].requests_per_second < 500.0, "{seconds:?}");
    assert!(seconds[2].p999_us > 500_000.0, "{seconds:?}");
    assert!(seconds.iter().all(|second| second.server.is_some()), "{seconds:?}");
}

#[test]
fn requests_that_are_never_answered_count_with_the_time_they_waited() {
    let (address, threads) = server(1, |stream| {
        let mut asked = 0;
        // This server stops answering after 50 requests, but keeps the connection open until the
        // client leaves.
        each_line(stream, |_, stream| {
            asked += 1;
            asked > 50 || stream.write_all(b"END\r\n").is_ok()
        });
    });
    let load = Load {
        connections: 1,
        pacing: Pacing::Poisson(500.0),
        duration: Some(Duration::from_millis(300)),
        grace: Duration::from_millis(200),
        requests: None,
        ..small_load(address)
    };
    let summary = load.run(small_shape()).unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(summary.total.requests, 50);
    assert!(summary.unanswered > 50, "{}", summary.unanswered);
    assert!(summary.latency.get("p99") > 200_000.0, "{:?}", summary.latency);
    assert!(summary.without_errors().is_err());
}

#[test]
fn the_wait_for_answers_after_the_end_is_not_measured() {
    // This server never answers, so the run lasts for the duration and then for the grace.
    let (address, threads) = server(1, |stream| each_line(stream, |_, _| true));
    let load = Load {
        connections: 1,
        pacing: Pacing::Constant(100.0),
        duration: Some(Duration::from_millis(500)),
        grace: Duration::from_secs(1),
        requests: None,
        ..small_load(address)
    };
    let workload = Workload::new(small_shape()).unwrap();
    let shared = Shared::new(1);
    let worker = Worker::new(&load, &workload, &shared, 0, vec![load.connect().unwrap()]).unwrap();
    let report = thread::scope(|scope| {
        let running = scope.spawn(move || worker.run());
        shared.ready.wait();
        running.join().unwrap().unwrap()
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(report.faults.unanswered > 0);
    // On a busy machine, the thread may notice the end late.
    let window = Duration::from_nanos(report.window);
    assert!(window >= Duration::from_millis(500) && window < Duration::from_secs(1), "{window:?}");
    assert!(report.cpu < report.window, "{report:?}");
}

#[test]
fn threads_keep_at_most_all_processors_busy() {
    assert!(is_bound(1.9, 4, 2));
    assert!(!is_bound(1.5, 4, 2));
    assert!(is_bound(3.5, 4, 8));
    assert!(!is_bound(1.9, 4, 8));
}

#[test]
fn a_count_is_exact_and_misses_are_counted() {
    let (address, threads) = server(3, |stream| {
        each_line(stream, |_, stream| stream.write_all(b"END\r\n").is_ok());
    });
    let load = Load {
        connections: 3,
        threads: 2,
        pipeline: 4,
        requests: Some(1001),
        ..small_load(address)
    };
    let summary = load.run(Shape { keys_per_get: 3, ..small_shape() }).unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!((summary.total.requests, summary.total.keys), (1001, 3003));
    assert_eq!((summary.total.misses, summary.hit_ratio), (3003, Some(0.0)));
}

#[test]
fn a_run_of_quiet_sets_is_answered_once_despite_refusals() {
    let (address, threads) = server(1, |stream| {
        each_line(stream, |line, stream| match line {
            "mn" => stream.write_all(b"SERVER_ERROR full\r\nMN\r\n").is_ok(),
            _ => true,
        });
    });
    let load = Load { connections: 1, threads: 1, requests: Some(7), ..small_load(address) };
    let mix = Mix::only(Verb::QuietSets);
    let summary = load.run(Shape { mix, keys_per_get: 3, ..small_shape() }).unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!((summary.total.requests, summary.total.keys), (7, 21));
    assert_eq!(summary.errors, 7);
}

#[test]
fn a_value_of_another_key_voids_the_run() {
    for (reply, what) in [
        ("VALUE key-00000000000 0 5\r\nwrong\r\nEND\r\n", "differs from the stored value"),
        ("VALUE key-00000000000 0 4\r\nlong\r\nEND\r\n", "4 bytes"),
        ("VALUE another 0 5\r\n12345\r\nEND\r\n", "not asked for"),
        ("STORED\r\n", "Stored as the answer to get"),
        ("END\r\nEND\r\n", "answers no request"),
    ] {
        let (address, threads) = server(2, move |stream| {
            each_line(stream, |_, stream| stream.write_all(reply.as_bytes()).is_ok());
        });
        let load = Load { verify: true, pipeline: 1, ..small_load(address) };
        let error = load.run(Shape { keys: 1, ..small_shape() }).unwrap_err().to_string();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(error.contains("void") && error.contains(what), "{error} for {reply:?}");
    }
}

#[test]
fn error_answers_are_counted_and_shown() {
    let (address, threads) = server(2, |stream| {
        each_line(stream, |_, stream| stream.write_all(b"SERVER_ERROR out of memory\r\n").is_ok());
    });
    let summary = small_load(address).run(small_shape()).unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!((summary.total.errors, summary.errors), (100, 100));
    assert_eq!(summary.first_error.as_deref(), Some("SERVER_ERROR out of memory"));
    assert!(summary.without_errors().is_err());
}

#[test]
fn a_server_that_leaves_is_an_error() {
    let (address, threads) = server(2, |stream| {
        let mut asked = 0;
        each_line(stream, |_, stream| {
            asked += 1;
            asked <= 10 && stream.write_all(b"END\r\n").is_ok()
        });
    });
    let error = small_load(address).run(small_shape()).unwrap_err();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(matches!(error, Error::Server(_) | Error::Io { .. }), "{error}");
}

#[test]
fn options_that_contradict_each_other() {
    let load = || small_load(Address::Tcp("127.0.0.1:1".into()));
    for load in [
        Load { threads: 3, ..load() },
        Load { pipeline: 0, ..load() },
        Load { duration: Some(Duration::from_secs(1)), ..load() },
        Load { pacing: Pacing::Constant(0.0), ..load() },
    ] {
        assert!(matches!(load.run(small_shape()), Err(Error::Usage(_))));
    }
}
