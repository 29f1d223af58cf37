//! Tests of commands that operators may forbid.

use super::{Client, NOW, NoHooks, Worker, shown};
use crate::command::{ServerContext, Switches};
use larder_engine::{Engine, NANOS, Options};
use std::sync::Arc;
use std::task::Waker;

fn check(switches: Switches, talk: &[(&str, &str)]) {
    let engine = Engine::open(Options { memory: 64 << 20, ..Options::default() }).unwrap();
    let context = ServerContext::new(Arc::clone(&engine), NOW - 100, Box::new(NoHooks));
    context.set_switches(switches);
    let session = engine.session(Waker::noop().clone());
    let mut worker = Worker::new(Arc::new(context), session, Box::new(|| u64::from(NOW) * NANOS));
    let mut client = Client::new(&mut worker);
    for (request, reply) in talk {
        let answer = client.ask(request.as_bytes());
        assert_eq!(shown(&answer), shown(reply.as_bytes()), "{request:?}");
    }
    drop(client);
    assert_eq!(engine.memory_limit() != 64 << 20, switches.control);
}

#[test]
fn commands_for_memory_and_devices_can_be_forbidden() {
    let talk = [
        ("cache_memlimit 128\r\n", "OK\r\n"),
        ("store grow 1048576\r\n", "SERVER_ERROR there is no store\r\n"),
    ];
    check(Switches::default(), &talk);
    let (memory, store) = (
        "CLIENT_ERROR cache_memlimit not allowed\r\n",
        "CLIENT_ERROR store commands not allowed\r\n",
    );
    let talk = [
        ("cache_memlimit 128\r\n", memory),
        ("cache_memlimit 128 noreply\r\nmn\r\n", "MN\r\n"),
        ("store grow 1048576\r\n", store),
        ("store grow 1048576 a\r\n", store),
        ("store drain a\r\n", store),
        ("store keep a\r\n", store),
        ("store x\r\n", "ERROR\r\n"),
        ("set k 0 0 1\r\nv\r\nget k\r\n", "STORED\r\nVALUE k 0 1\r\nv\r\nEND\r\n"),
    ];
    check(Switches { control: false, ..Switches::default() }, &talk);
}
