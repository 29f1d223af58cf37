//! Tests of absolute times on a server whose engine has another time than the wall clock.

use super::{Client, NOW, NoHooks, Worker, shown};
use crate::command::ServerContext;
use larder_engine::{Engine, NANOS, Options};
use std::sync::Arc;
use std::task::Waker;

/// Returns a binary set of the key `b` with this expiry time.
fn binary_set(exptime: u32) -> Vec<u8> {
    let mut packet = vec![0x80, 1, 0, 1, 8, 0, 0, 0, 0, 0, 0, 10];
    packet.resize(28, 0);
    packet.extend(exptime.to_be_bytes());
    packet.extend(b"bv");
    packet
}

#[test]
fn absolute_times_are_those_of_the_wall_clock() {
    for ahead in [-3600, 3600] {
        let engine = Engine::open(Options { memory: 64 << 20, ..Options::default() }).unwrap();
        let mut context = ServerContext::new(Arc::clone(&engine), NOW - 100, Box::new(NoHooks));
        context.wall_ahead = ahead;
        let session = engine.session(Waker::noop().clone());
        let mut worker =
            Worker::new(Arc::new(context), session, Box::new(|| u64::from(NOW) * NANOS));
        let wall = NOW.checked_add_signed(ahead as i32).unwrap();
        let at = |seconds: u32| wall + seconds;

        let stored = Client::new(&mut worker).ask(&binary_set(at(40)));
        assert_eq!(stored[..8], [0x81, 1, 0, 0, 0, 0, 0, 0]);
        let mut client = Client::new(&mut worker);
        for (request, reply) in [
            (format!("set t 0 {} 1\r\nv\r\n", at(50)), "STORED\r\n"),
            (format!("set past 0 {} 1\r\nv\r\n", wall - 100), "STORED\r\n"),
            (format!("ms m 1 T{}\r\nv\r\n", at(60)), "HD\r\n"),
            (format!("mg n N{}\r\nmg n t\r\n", at(70)), "HD W\r\nHD t70 Z\r\n"),
            ("get past\r\n".to_owned(), "END\r\n"),
            ("mg b t\r\nmg t t\r\nmg m t\r\n".to_owned(), "HD t40\r\nHD t50\r\nHD t60\r\n"),
            (format!("touch t {}\r\nmg t t\r\n", at(80)), "TOUCHED\r\nHD t80\r\n"),
            (format!("mg t R{}\r\n", at(80)), "HD\r\n"),
            (format!("mg t R{}\r\n", at(81)), "HD W\r\n"),
        ] {
            assert_eq!(
                shown(&client.ask(request.as_bytes())),
                shown(reply.as_bytes()),
                "{request}"
            );
        }
        let dump = String::from_utf8(client.ask(b"lru_crawler metadump all\r\n")).unwrap();
        for (key, exp) in [("b", 40), ("t", 80), ("m", 60)] {
            let line = format!("key={key} exp={} la={wall} ", at(exp));
            assert!(dump.contains(&line), "{line} not in {dump}");
        }
        let dump = String::from_utf8(client.ask(b"stats cachedump 1 0\r\n")).unwrap();
        assert!(dump.contains(&format!("ITEM m [1 b; {} s]\r\n", at(60))), "{dump}");

        // A flush at a time before the server's start must do nothing. A flush whose time is the
        // next second must not take effect yet.
        let flush = format!("flush_all {}\r\nmg m t\r\n", wall - 100);
        assert_eq!(shown(&client.ask(flush.as_bytes())), shown(b"OK\r\nHD t60\r\n"));
        let flush = format!("flush_all {}\r\nmg m t\r\n", at(1));
        assert_eq!(shown(&client.ask(flush.as_bytes())), shown(b"OK\r\nHD t60\r\n"));
    }
}
