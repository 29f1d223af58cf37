//! Replies in sync mode: a device that is in the test's hands, and commits that the test makes.

use super::{NOW, shown, worker_on};
use crate::connection::{Connection, Worker};
use crate::net::{ConnectionId, Flow, InputBuffer, OutputMemory, Peer, Service};
use larder_disk::{Failure, Fault, Operation, SimDevice};
use larder_engine::{Durability, Engine, ManualCleaner, MonotonicClock, Options, StoreOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Wake, Waker};
use std::time::Duration;

pub(super) fn store_options(device: &Arc<SimDevice>) -> Options {
    let store = StoreOptions {
        device: Arc::<SimDevice>::clone(device),
        durability: Durability::Sync,
        sync_interval: Duration::from_secs(1),
        accept_damage: false,
        clock: MonotonicClock(Arc::new(|| Duration::ZERO)),
        seeds: [1, 2, 3],
        created: u64::from(NOW),
    };
    Options { memory: 64 << 20, store: Some(store), ..Options::default() }
}

/// A store whose commits the test makes.
struct Store {
    device: Arc<SimDevice>,
    engine: Arc<Engine>,
}

impl Store {
    fn new() -> Store {
        Store::with_memory(64 << 20)
    }

    fn with_memory(memory: u64) -> Store {
        let device = Arc::new(SimDevice::new(256 << 20, 1));
        let options = Options { memory, ..store_options(&device) };
        let engine = Engine::open_without_threads(options).unwrap();
        Store { device, engine }
    }

    fn client(&self) -> Client {
        Client::new(&self.engine)
    }

    fn commit(&self) {
        assert!(self.engine.commit());
    }

    /// A commit that fails, and one behind it that does not.
    fn fail(&self) {
        self.device.plan(Fault::lasting(Operation::Sync, 1, Failure::Io));
        // With nothing to do it cannot fail.
        self.engine.commit();
        self.device.mend();
        self.commit();
    }

    fn break_down(&self) {
        self.device.plan(Fault::lasting(Operation::Sync, 1, Failure::Io));
        assert!(!self.engine.commit());
    }

    fn buffers(&self) -> u64 {
        self.engine.stats().buffer_bytes
    }
}

#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// A client with a worker of its own.
struct Client {
    worker: Worker,
    connection: Option<Connection>,
    input: Vec<u8>,
    received: Vec<u8>,
    limit: usize,
    flow: Flow,
    bell: Arc<Bell>,
}

impl Client {
    fn new(engine: &Arc<Engine>) -> Client {
        let bell = Arc::new(Bell::default());
        let mut worker = worker_on(engine, Waker::from(Arc::clone(&bell)));
        let connection = Some(worker.connect(Peer::Unix, ConnectionId::new(1)));
        let (input, received) = (Vec::new(), Vec::new());
        let limit = 64 << 10;
        Client { worker, connection, input, received, limit, flow: Flow::Read, bell }
    }

    /// Goes on until something has to be waited for.
    fn turn(&mut self) {
        self.call();
        while self.flow == Flow::Drain {
            self.call();
        }
    }

    /// One call of the service.
    fn call(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        self.worker.turn();
        let mut memory = OutputMemory::default();
        let mut input = InputBuffer::new(&self.input);
        let mut output = memory.buffer(self.limit);
        self.flow = self.worker.process(connection, &mut input, &mut output);
        let consumed = input.consumed();
        self.received.extend_from_slice(memory.bytes());
        self.input.drain(..consumed);
        if self.flow == Flow::Close {
            self.received.extend_from_slice(b"<EOF>");
            self.hang_up();
        }
    }

    fn hang_up(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.worker.disconnect(connection);
        }
    }

    /// Sends `bytes`; what comes of them at once.
    fn send(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.input.extend_from_slice(bytes);
        self.more()
    }

    /// What comes without sending anything.
    fn more(&mut self) -> Vec<u8> {
        self.turn();
        std::mem::take(&mut self.received)
    }

    /// What comes when the worker was woken, which must have happened.
    fn woken(&mut self) -> Vec<u8> {
        assert!(self.bell.0.swap(0, SeqCst) > 0, "nobody has woken the worker");
        self.more()
    }

    #[track_caller]
    fn sends(&mut self, bytes: &[u8], reply: &[u8]) {
        let got = self.send(bytes);
        assert!(got == reply, "{} got {}", shown(bytes), shown(&got));
    }

    #[track_caller]
    fn gets(&mut self, reply: &[u8]) {
        let got = self.woken();
        assert!(got == reply, "{} instead of {}", shown(&got), shown(reply));
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.hang_up();
    }
}

const LOST: &[u8] = b"SERVER_ERROR store failed: write not kept\r\n";

#[test]
fn a_write_is_acknowledged_when_it_is_durable() {
    let store = Store::new();
    let mut client = store.client();
    client.sends(b"set a 0 0 1\r\nx\r\n", b"");
    assert_eq!(client.flow, Flow::Hold);
    assert!(!client.worker.is_idle(client.connection.as_ref().unwrap()));
    assert!(store.buffers() > 0);
    // Woken for nothing.
    assert_eq!(client.more(), b"");
    store.commit();
    client.gets(b"STORED\r\n");
    assert_eq!((client.flow, store.buffers()), (Flow::Read, 0));
    client.sends(b"get a\r\n", b"VALUE a 0 1\r\nx\r\nEND\r\n");
    assert!(client.worker.is_idle(client.connection.as_ref().unwrap()));
}

#[test]
fn what_stands_in_front_is_sent_and_what_stands_behind_waits() {
    let store = Store::new();
    let mut client = store.client();
    client.sends(b"mn\r\nget none\r\nset n 0 0 1\r\n1\r\nmn\r\nincr n 4\r\n", b"MN\r\nEND\r\n");
    client.sends(b"get n none\r\nset q 0 0 1 noreply\r\nx\r\nversion\r\n", b"");
    let binary_is_late = b"mg q v\r\nms q 1 q\r\ny\r\nmn\r\n";
    client.sends(binary_is_late, b"");
    store.commit();
    client.gets(
        b"STORED\r\nMN\r\n5\r\nVALUE n 0 1\r\n5\r\nEND\r\nVERSION 1.6.45\r\n\
          VA 1\r\nx\r\nMN\r\n",
    );
    assert_eq!(client.flow, Flow::Read);
}

#[test]
fn others_wait_for_what_they_see() {
    let store = Store::new();
    let mut writer = store.client();
    writer.sends(b"set old 0 0 1\r\nx\r\nset n 0 0 1\r\n5\r\n", b"");
    store.commit();
    writer.gets(b"STORED\r\nSTORED\r\n");
    let mut reader = store.client();
    reader.sends(b"get old\r\n", b"VALUE old 0 1\r\nx\r\nEND\r\n");
    writer.sends(b"delete old\r\nset new 0 0 1\r\ny\r\nincr n 1\r\n", b"");
    let mut readers = [
        (&b"get old\r\n"[..], &b"END\r\n"[..]),
        (b"get new\r\n", b"VALUE new 0 1\r\ny\r\nEND\r\n"),
        (b"mg old v\r\n", b"EN\r\n"),
        (b"add new 0 0 1\r\nz\r\n", b"NOT_STORED\r\n"),
        (b"replace old 0 0 1\r\nz\r\n", b"NOT_STORED\r\n"),
        (b"cas new 0 0 1 987654321\r\nz\r\n", b"EXISTS\r\n"),
        (b"delete old\r\n", b"NOT_FOUND\r\n"),
        (b"get n\r\n", b"VALUE n 0 1\r\n6\r\nEND\r\n"),
    ]
    .map(|(request, reply)| {
        let mut reader = store.client();
        reader.sends(request, b"");
        assert_eq!(reader.flow, Flow::Hold);
        (reader, reply)
    });
    store.commit();
    for (reader, reply) in &mut readers {
        reader.gets(reply);
    }
    writer.gets(b"DELETED\r\nSTORED\r\n6\r\n");
}

#[test]
fn a_write_that_was_not_kept_is_an_error() {
    let store = Store::new();
    let mut client = store.client();
    client.sends(b"set a 0 0 1\r\nx\r\nset n 0 0 1\r\n5\r\n", b"");
    store.commit();
    client.gets(b"STORED\r\nSTORED\r\n");
    let requests = b"set a 0 0 1\r\ny\r\nmn\r\nincr n 1\r\ndelete a\r\ndelete a\r\n\
        add new 0 0 1\r\nz\r\nset b 0 0 1 noreply\r\nx\r\nms q 1 q\r\nx\r\ntouch n 100\r\n\
        gat 100 n\r\nmg n T30 v\r\nmn\r\n";
    client.sends(requests, b"");
    store.fail();
    let mut reply = [LOST, b"MN\r\n"].concat();
    reply.extend_from_slice(&LOST.repeat(8));
    reply.extend_from_slice(b"MN\r\n");
    client.gets(&reply);
    let kept = b"VALUE a 0 1\r\nx\r\nVALUE n 0 1\r\n5\r\nEND\r\n";
    client.sends(b"get a n b q new\r\n", kept);
    let stored = b"set a 0 0 1\r\ny\r\n";
    client.sends(stored, b"");
    store.commit();
    client.gets(b"STORED\r\n");
}

#[test]
fn a_binary_write_that_was_not_kept_is_an_error_with_its_number() {
    let store = Store::new();
    let mut client = store.client();
    // A quiet set, which is answered with errors only, and one that is not quiet.
    let set = |opcode: u8, opaque: u8| {
        let mut packet = vec![0x80, opcode, 0, 1, 8, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, opaque];
        packet.extend_from_slice(&[0; 16]);
        packet.extend_from_slice(b"kv");
        packet
    };
    let both = [set(0x11, 7), set(0x01, 8)].concat();
    client.sends(&both, b"");
    store.commit();
    let reply = client.woken();
    assert_eq!((reply.len(), reply[1], reply[7], reply[15]), (24, 0x01, 0, 8));
    client.sends(&both, b"");
    store.fail();
    let reply = client.woken();
    let (first, second) = reply.split_at(reply.len() / 2);
    for (packet, opcode, opaque) in [(first, 0x11, 7), (second, 0x01, 8)] {
        assert_eq!(packet[..2], [0x81, opcode]);
        assert_eq!((&packet[6..8], packet[15]), (&[0, 0x84][..], opaque));
        assert_eq!(packet[24..], *b"Store failed: write not kept");
    }
}

#[test]
fn a_retrieval_of_what_was_not_kept_is_executed_again() {
    let store = Store::new();
    let mut writer = store.client();
    writer.sends(b"set a 0 0 3\r\nold\r\nset gone 0 0 1\r\nx\r\n", b"");
    store.commit();
    writer.woken();
    writer.sends(b"set a 0 0 9\r\nnot kept!\r\ndelete gone\r\nset made 0 0 1\r\nx\r\n", b"");
    let mut reader = store.client();
    reader.sends(b"get a gone made\r\nmg gone v\r\nmg gone v q\r\nmg made\r\nmn\r\n", b"");
    // The same client's own change, which is undone, too.
    let mut both = store.client();
    both.sends(b"get a\r\nset a 0 0 1\r\nz\r\nget a\r\n", b"");
    store.fail();
    reader.gets(
        b"VALUE a 0 3\r\nold\r\nVALUE gone 0 1\r\nx\r\nEND\r\nVA 1\r\nx\r\nVA 1\r\nx\r\n\
          EN\r\nMN\r\n",
    );
    let old = b"VALUE a 0 3\r\nold\r\nEND\r\n";
    both.gets(&[old, LOST, old].concat());
    assert_eq!((reader.flow, both.flow), (Flow::Read, Flow::Read));
}

#[test]
fn what_is_executed_again_may_have_to_wait_again() {
    let store = Store::new();
    let mut writer = store.client();
    writer.sends(b"set a 0 0 5\r\nfirst\r\n", b"");
    let mut reader = store.client();
    reader.sends(b"get a\r\nmn\r\n", b"");
    store.fail();
    writer.sends(b"set a 0 0 6\r\nsecond\r\n", LOST);
    assert_eq!(reader.woken(), b"");
    assert_eq!(reader.flow, Flow::Hold);
    reader.sends(b"mn\r\n", b"");
    store.commit();
    reader.gets(b"VALUE a 0 6\r\nsecond\r\nEND\r\nMN\r\nMN\r\n");
    writer.gets(b"STORED\r\n");
    assert_eq!(store.buffers(), 0);
}

/// A later change of the same client has taken effect: a request in front of it must not see it.
#[test]
fn a_retrieval_never_sees_what_its_client_asked_for_later() {
    let store = Store::new();
    let mut writer = store.client();
    writer.sends(b"set a 0 0 5\r\nfirst\r\n", b"");
    let mut reader = store.client();
    reader.sends(b"get a\r\n", b"");
    store.fail();
    // It has not looked yet, but its input arrives.
    let connection = reader.connection.as_mut().unwrap();
    let mut memory = OutputMemory::default();
    let mut output = memory.buffer(1 << 20);
    reader.worker.turn();
    let mut input = InputBuffer::new(b"set a 0 0 4\r\nmine\r\n");
    let flow = reader.worker.go_on(connection, &mut input, &mut output);
    let flow = reader.worker.withhold(connection, flow, &mut output);
    assert_eq!(flow, Flow::Drain, "the first gate is not pending any more");
    assert_eq!(reader.more(), LOST);
    store.commit();
    reader.gets(b"STORED\r\n");
}

#[test]
fn a_failing_store_refuses_writes_and_answers_reads() {
    let store = Store::new();
    let mut client = store.client();
    client.sends(b"set a 0 0 1\r\nx\r\n", b"");
    store.commit();
    client.gets(b"STORED\r\n");
    client.sends(b"set a 0 0 1\r\ny\r\n", b"");
    store.break_down();
    client.gets(LOST);
    client.sends(
        b"set a 0 0 1\r\ny\r\nget a\r\nincr n 1\r\n",
        &[LOST, b"VALUE a 0 1\r\nx\r\nEND\r\n", b"NOT_FOUND\r\n"].concat(),
    );
    client.sends(b"set a 0 0 1 noreply\r\ny\r\nmn\r\n", b"MN\r\n");
    store.device.mend();
    store.commit();
    client.sends(b"set a 0 0 1\r\ny\r\n", b"");
    store.commit();
    client.gets(b"STORED\r\n");
}

#[test]
fn the_end_of_a_connection_waits_too() {
    let store = Store::new();
    for end in [&b"quit\r\n"[..], b"GET / HTTP/1.1\r\n"] {
        let mut client = store.client();
        client.sends(&[b"set a 0 0 1\r\nx\r\n", end, b"mn\r\n"].concat(), b"");
        assert_eq!(client.flow, Flow::Park);
        assert_eq!(client.more(), b"");
        store.commit();
        client.gets(b"STORED\r\n<EOF>");
    }
    let mut client = store.client();
    client.sends(b"set a 0 0 1\r\nx\r\n", b"");
    assert!(store.buffers() > 0);
    client.hang_up();
    assert_eq!(store.buffers(), 0);
    store.commit();
}

#[test]
fn what_is_withheld_is_bounded() {
    let store = Store::new();
    let mut client = store.client();
    client.limit = 10_000;
    let requests = 5000;
    let mut input = Vec::new();
    for n in 0..requests {
        input.extend_from_slice(format!("ms k{} 1 q\r\nx\r\nincr n 1\r\n", n % 10).as_bytes());
    }
    client.send(b"set n 0 0 1\r\n0\r\n");
    let mut reply = client.send(&input);
    let mut commits = 0;
    while !client.input.is_empty() {
        assert_eq!(client.flow, Flow::Park);
        assert!((5_000..50_000).contains(&store.buffers()), "{}", store.buffers());
        store.commit();
        reply.extend(client.woken());
        commits += 1;
    }
    store.commit();
    reply.extend(client.woken());
    assert!((50..500).contains(&commits), "{commits}");
    let mut expected = b"STORED\r\n".to_vec();
    (1..=requests).for_each(|n| expected.extend_from_slice(format!("{n}\r\n").as_bytes()));
    assert!(reply == expected, "{}", shown(&reply));
    assert_eq!(store.buffers(), 0);
}

#[test]
fn long_replies_wait_from_their_first_byte() {
    let store = Store::new();
    let mut writer = store.client();
    let value = |letter: u8| vec![letter; 300_000];
    let set = |letter| [b"set a 0 0 300000\r\n", &value(letter)[..], b"\r\n"].concat();
    let shown = |letter| [b"VALUE a 0 300000\r\n", &value(letter)[..], b"\r\n"].concat();
    writer.sends(&set(b'o'), b"");
    let mut reader = store.client();
    reader.sends(b"get a a\r\nmn\r\n", b"");
    assert!(store.buffers() < 200_000);
    store.commit();
    writer.gets(b"STORED\r\n");
    let both = [&shown(b'o')[..], &shown(b'o'), b"END\r\nMN\r\n"].concat();
    reader.gets(&both);

    // Of one that is not kept nothing is ever seen.
    writer.sends(&set(b'n'), b"");
    reader.sends(b"mg a v\r\nmn\r\n", b"");
    let mut several = store.client();
    several.sends(b"get a a\r\nmn\r\n", b"");
    store.fail();
    writer.gets(LOST);
    reader.gets(&[b"VA 300000\r\n", &value(b'o')[..], b"\r\nMN\r\n"].concat());
    // It had answered one key of two: what stands behind that one cannot be said any more.
    several.gets(b"<EOF>");
    assert_eq!(store.buffers(), 0);
}

#[test]
fn nobody_sees_a_number_that_could_be_taken_back() {
    for seed in 0..20u64 {
        let store = Store::new();
        let mut clients: Vec<Client> = (0..5).map(|_| store.client()).collect();
        clients[0].send(b"set n 0 0 1\r\n0\r\n");
        store.commit();
        clients[0].gets(b"STORED\r\n");
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = |n: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % n
        };
        let (mut counted, mut durable) = (Vec::new(), 0);
        for _ in 0..300 {
            let at = below(5) as usize;
            let received = match below(4) {
                0 => clients[at].send(b"get n\r\n"),
                1 | 2 => clients[at].send(b"incr n 1\r\nget n\r\n"),
                _ => {
                    if below(3) == 0 {
                        store.fail()
                    } else {
                        store.commit()
                    }
                    let found = store.client().send(b"mg n v\r\n");
                    let digits = String::from_utf8_lossy(&found);
                    durable = digits.lines().nth(1).unwrap().parse().unwrap();
                    clients[at].more()
                }
            };
            let mut retrieved = false;
            for line in String::from_utf8(received).unwrap().lines() {
                if let Ok(number) = line.parse::<u64>() {
                    assert!(number <= durable, "seed {seed}: {number} of {durable}");
                    if !retrieved {
                        counted.push(number);
                    }
                }
                retrieved = line.starts_with("VALUE");
            }
        }
        let all = counted.len();
        counted.sort_unstable();
        counted.dedup();
        assert_eq!(counted.len(), all, "seed {seed}: a number was counted twice");
        assert!(all > 20 && durable >= all as u64, "seed {seed}: {all} of {durable}");
    }
}

#[test]
fn lines_of_any_length_wait_as_well() {
    let store = Store::new();
    let mut client = store.client();
    client.sends(b"set a 0 0 1\r\nx\r\n", b"");
    let line = [&b"get"[..], &b" none a".repeat(1000), b"\r\nmn\r\n"].concat();
    client.sends(&line, b"");
    store.commit();
    let shown = b"VALUE a 0 1\r\nx\r\n".repeat(1000);
    client.gets(&[b"STORED\r\n", &shown[..], b"END\r\nMN\r\n"].concat());
    client.sends(b"set a 0 0 1\r\ny\r\n", b"");
    client.sends(&line, b"");
    store.fail();
    client.gets(&[LOST, b"<EOF>"].concat());
    assert_eq!(store.buffers(), 0);
}

/// A set that is too large leaves no old value behind, and that waits as other changes do.
#[test]
fn a_refusal_that_changes_something_waits() {
    let store = Store::new();
    let mut client = store.client();
    client.sends(b"set a 0 0 1\r\nx\r\n", b"");
    store.commit();
    client.gets(b"STORED\r\n");
    let large = [&b"set a 0 0 2000000\r\n"[..], &[b'y'; 2_000_000], b"\r\nmn\r\n"].concat();
    client.sends(&large, b"");
    store.fail();
    client.gets(&[LOST, b"MN\r\n"].concat());
    client.sends(b"get a\r\n", b"VALUE a 0 1\r\nx\r\nEND\r\n");
    client.sends(&large, b"");
    store.commit();
    client.gets(b"SERVER_ERROR object too large for cache\r\nMN\r\n");
    client.sends(b"get a\r\n", b"END\r\n");
}

/// A flush is durable by itself before it is answered.
#[test]
fn a_flush_keeps_its_place() {
    let store = Store::new();
    let mut client = store.client();
    client.sends(b"set a 0 0 1\r\nx\r\n", b"");
    store.commit();
    client.gets(b"STORED\r\n");
    client.sends(b"set b 0 0 1\r\nx\r\nget b\r\nflush_all\r\nget a b\r\n", b"");
    store.client().sends(b"get a b\r\n", b"END\r\n");
    store.commit();
    client.gets(b"STORED\r\nVALUE b 0 1\r\nx\r\nEND\r\nOK\r\nEND\r\n");
}

/// A store whose memory is full of other items, so that `a` lies on the device only, and its value.
/// `meanwhile` comes between the two.
fn store_with_a_on_the_device(meanwhile: impl FnOnce(&Store)) -> (Store, Vec<u8>) {
    let store = Store::with_memory(8 << 20);
    let mut writer = store.client();
    let value: Vec<u8> = (0..10_000).map(|n| (n % 251) as u8).collect();
    let mut cleaner = ManualCleaner::default();
    let mut set = |key: &str| {
        let head = format!("set {key} 0 0 {}\r\n", value.len());
        let mut reply = writer.send(&[head.as_bytes(), &value, b"\r\n"].concat());
        while reply.is_empty() {
            store.engine.serve_reads();
            store.engine.clean(&mut cleaner);
            store.commit();
            reply = writer.more();
        }
        assert_eq!(reply, b"STORED\r\n");
    };
    set("a");
    meanwhile(&store);
    (0..2000).for_each(|n| set(&format!("other:{n}")));
    drop(writer);
    (store, value)
}

/// What is true after a change was undone may have to be read.
#[test]
fn what_is_executed_again_may_lie_on_the_device() {
    let (store, value) = store_with_a_on_the_device(|_| {});
    let mut writer = store.client();
    writer.send(b"set a 0 0 3\r\nnew\r\n");
    assert_eq!(writer.flow, Flow::Park, "the key is compared with what is on the device");
    store.engine.serve_reads();
    assert_eq!(writer.more(), b"");
    assert_eq!(writer.flow, Flow::Hold);
    let mut reader = store.client();
    reader.sends(b"mn\r\nget a\r\nmn\r\n", b"MN\r\n");
    assert_eq!(reader.flow, Flow::Hold);
    store.fail();
    assert_eq!(reader.woken(), b"");
    assert_eq!(reader.flow, Flow::Park);
    assert_eq!(reader.more(), b"");
    assert!(store.engine.serve_reads());
    reader.gets(&[b"VALUE a 0 10000\r\n", &value[..], b"\r\nEND\r\nMN\r\n"].concat());
}

#[test]
fn long_values_are_sent_from_the_device() {
    let mut begun = None;
    let (store, value) = store_with_a_on_the_device(|store| {
        // It is in memory when it begins to be sent.
        let mut client = store.client();
        client.limit = 1000;
        client.input.extend_from_slice(b"get a\r\n");
        client.call();
        assert_eq!(client.flow, Flow::Drain);
        client.worker.sleep();
        begun = Some(client);
    });
    let whole = [b"VALUE a 0 10000\r\n", &value[..], b"\r\nEND\r\n"].concat();
    let mut later = store.client();
    later.limit = 1000;
    later.send(b"get a\r\n");
    let mut begun = begun.unwrap();
    begun.turn();
    for client in [&mut begun, &mut later] {
        assert_eq!(client.flow, Flow::Park);
        store.engine.serve_reads();
        client.bell.0.store(0, SeqCst);
        let got = client.more();
        assert!(got == whole, "{}", shown(&got));
    }
}
