//! Tests of long values, long lines, full outputs, and pipelines.

use super::{Client, shown, worker, worker_with};
use larder_engine::{Options, WhenFull};
use std::time::{Duration, Instant};

#[track_caller]
fn check(client: &mut Client<'_>, request: &[u8], reply: &[u8]) {
    let answered = client.ask(request);
    assert!(
        answered == reply,
        "{} was answered with {} instead of {}",
        shown(request),
        shown(&answered),
        shown(reply)
    );
}

fn value(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

fn set(key: &str, value: &[u8]) -> Vec<u8> {
    let mut request = format!("set {key} 0 0 {}\r\n", value.len()).into_bytes();
    request.extend_from_slice(value);
    request.extend_from_slice(b"\r\n");
    request
}

fn shown_value(key: &str, value: &[u8]) -> Vec<u8> {
    let mut reply = format!("VALUE {key} 0 {}\r\n", value.len()).into_bytes();
    reply.extend_from_slice(value);
    reply.extend_from_slice(b"\r\n");
    reply
}

#[test]
fn long_values_are_received_and_sent_in_pieces() {
    let mut worker = worker();
    for len in [1000, 16 << 10, 100_000, 1_000_000] {
        for piece in [len / 7, len, 2 * len] {
            let mut client = Client::new(&mut worker);
            client.limit = 10_000;
            let value = value(len);
            for piece in set("k", &value).chunks(piece) {
                client.send(piece);
            }
            assert_eq!(client.take(), b"STORED\r\n");
            let mut reply = shown_value("k", &value);
            reply.extend_from_slice(&reply.clone());
            reply.extend_from_slice(b"END\r\nMN\r\n");
            check(&mut client, b"get none k k\r\nmn\r\n", &reply);
            assert!(client.output_max <= 2 * 10_000 + 1024, "{}", client.output_max);
        }
    }
}

#[test]
fn a_meta_command_returns_a_long_value_in_pieces() {
    let mut worker = worker();
    let mut client = Client::new(&mut worker);
    client.limit = 5000;
    let value = value(70_000);
    assert_eq!(client.ask(&set("k", &value)), b"STORED\r\n");
    let mut reply = b"VA 70000 kk Oq\r\n".to_vec();
    reply.extend_from_slice(&value);
    reply.extend_from_slice(b"\r\nMN\r\n");
    check(&mut client, b"mg k v k Oq\r\nmn\r\n", &reply);
}

#[test]
fn only_retrievals_may_have_lines_of_any_length() {
    let mut worker = worker();
    let mut client = Client::new(&mut worker);
    assert_eq!(client.ask(b"set key7 0 0 1\r\nx\r\n"), b"STORED\r\n");
    let mut request = b"get".to_vec();
    for i in 0..20_000 {
        request.extend_from_slice(format!(" key{i}").as_bytes());
    }
    request.extend_from_slice(b"\r\nmn\r\n");
    for piece in [1 << 20, 10_000, 999] {
        for piece in request.chunks(piece) {
            client.send(piece);
            assert!(client.held.len() <= 2048 + 16, "{}", client.held.len());
        }
        assert_eq!(client.take(), b"VALUE key7 0 1\r\nx\r\nEND\r\nMN\r\n");
    }
    let mut request = b"gats 100".to_vec();
    request.extend_from_slice(&b" key7".repeat(1000));
    request.extend_from_slice(b"\n");
    client.limit = 100;
    client.send(&request);
    assert_eq!(client.take().windows(5).filter(|window| window == b"VALUE").count(), 1000);
    assert!(client.output_max < 500);
    client.send(&[b'a'; 2048]);
    assert_eq!(client.take(), b"");
    client.send(b"a");
    assert_eq!(client.take(), b"<EOF>");
}

#[test]
fn an_invalid_key_in_a_very_long_line_ends_the_line() {
    let mut worker = worker();
    let mut client = Client::new(&mut worker);
    let mut request = b"get ".to_vec();
    request.extend_from_slice(&b"a ".repeat(1500));
    request.extend_from_slice(&[b'k'; 251]);
    request.extend_from_slice(&b" b".repeat(1500));
    request.extend_from_slice(b"\r\nmn\r\n");
    for piece in [1 << 20, 1] {
        for piece in request.chunks(piece) {
            client.send(piece);
        }
        assert_eq!(client.take(), b"CLIENT_ERROR bad command line format\r\nMN\r\n");
    }
}

#[test]
fn an_announced_value_costs_memory_only_as_it_arrives() {
    let mut worker = worker();
    let before = worker.session.engine().stats().buffer_bytes;
    let mut client = Client::new(&mut worker);
    let len = client.worker.session.engine().large_value_threshold();
    client.send(format!("set k 0 0 {len}\r\n").as_bytes());
    client.send(&[b'x'; 10]);
    assert!(client.worker.session.engine().stats().buffer_bytes <= before + (16 << 10));
    client.send(&vec![b'x'; len - 20]);
    assert!(client.worker.session.engine().stats().buffer_bytes >= before + len as u64 - 20);
    drop(client);
    worker.context.arrivals.buffers.trim(Instant::now() + Duration::from_secs(10));
    assert_eq!(worker.session.engine().stats().buffer_bytes, before);
}

#[test]
fn a_pipeline_is_answered_in_order() {
    let mut worker = worker();
    let mut client = Client::new(&mut worker);
    let (mut request, mut reply) = (Vec::new(), Vec::new());
    for i in 0..500 {
        let value = value(i % 90);
        request.extend_from_slice(&set(&format!("k{i}"), &value));
        request.extend_from_slice(format!("get k{i} none\r\nmg k{i} s k\r\n").as_bytes());
        reply.extend_from_slice(b"STORED\r\n");
        reply.extend_from_slice(&shown_value(&format!("k{i}"), &value));
        reply.extend_from_slice(format!("END\r\nHD s{} kk{i}\r\n", value.len()).as_bytes());
    }
    check(&mut client, &request, &reply);
    client.limit = 50;
    check(&mut client, &request, &reply);
}

#[test]
fn dumps_show_every_item_within_the_output_limit() {
    let mut worker = worker();
    let mut client = Client::new(&mut worker);
    client.limit = 300;
    for i in 0..200 {
        assert_eq!(client.ask(&set(&format!("key:{i}"), b"v")), b"STORED\r\n");
    }
    client.send(b"ms AAEg 1 b F7 T100\r\nx\r\nlru_crawler metadump all\r\nmn\r\n");
    let dump = String::from_utf8(client.take()).unwrap();
    assert!(dump.starts_with("HD\r\nOK\r\nkey=") && dump.ends_with("\nEND\r\nMN\r\n"), "{dump}");
    assert_eq!(dump.lines().filter(|line| line.starts_with("key=")).count(), 201);
    assert!(dump.contains("key=key%3A77 exp=-1 la="));
    assert!(dump.contains("key=%00%01%20 exp=1800000100 la="));
    assert!(dump.lines().any(|line| line.contains("key=%00%01%20") && line.ends_with(" flags=7 ")));
    client.send(b"lru_crawler mgdump hash\r\n");
    let dump = String::from_utf8(client.take()).unwrap();
    assert!(dump.starts_with("OK\r\nmg ") && dump.ends_with("\r\nEN\r\n"));
    assert!(dump.contains("\r\nmg key:9\r\n") && dump.contains("mg AAEg b\r\n"));
    assert_eq!(client.ask(b"lru_crawler mgdump 5\r\n"), b"OK\r\nEN\r\n");
    let dump = String::from_utf8(client.ask(b"stats cachedump 1 3\r\n")).unwrap();
    assert_eq!(dump.lines().filter(|line| line.ends_with(" [1 b; 0 s]")).count(), 3);
    assert_eq!(client.ask(b"stats cachedump 2 3\r\n"), b"END\r\n");
}

#[test]
fn one_worker_serves_both_protocols() {
    let mut worker = worker();
    assert_eq!(Client::new(&mut worker).ask(&set("k", b"text")), b"STORED\r\n");
    let mut get = vec![0x80, 0x00, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 9];
    get.extend_from_slice(&[0; 8]);
    get.push(b'k');
    let mut client = Client::new(&mut worker);
    for byte in &get {
        client.send(std::slice::from_ref(byte));
    }
    let reply = client.take();
    assert_eq!(reply[..4], [0x81, 0, 0, 0]);
    assert!(reply.ends_with(b"\0\0\0\0text"), "{}", shown(&reply));
}

#[test]
fn statistics_end_with_a_line() {
    let mut worker = worker();
    let mut client = Client::new(&mut worker);
    check(&mut client, b"stats\r\n", b"STAT pid 1\r\nEND\r\n");
    check(&mut client, b"stats nonsense\r\n", b"ERROR\r\n");
    check(&mut client, b"version\r\n", b"VERSION 1.6.45\r\n");
    check(&mut client, b"watch fetchers\r\n", b"CLIENT_ERROR watch commands not allowed\r\n");
    check(&mut client, b"shutdown\r\nmn\r\n", b"<EOF>");
}

/// Stores more than fits into an engine that evicts. Every set must succeed, even if its connection
/// parks until there is space.
#[test]
fn writes_park_until_there_is_space() {
    let mut worker = worker();
    let mut client = Client::new(&mut worker);
    for len in [100, 20_000, 700_000] {
        let value = value(len);
        for i in 0..200_000_000 / (len + 100) / 4 {
            client.send(&set(&format!("{len}:{i}"), &value));
            assert_eq!(client.take(), b"STORED\r\n", "{len}, {i}");
        }
    }
}

#[test]
fn a_refused_long_value_does_not_disturb_the_next_request() {
    let memory = 64 << 20;
    let options = Options { memory, when_full: WhenFull::Refuse, ..Options::default() };
    let mut worker = worker_with(options);
    let mut client = Client::new(&mut worker);
    let value = value(200_000);
    let mut refused = 0;
    for i in 0..1000 {
        client.send(&set(&format!("k{i}"), &value));
        client.send(b"mn\r\n");
        match &client.take()[..] {
            b"STORED\r\nMN\r\n" => {}
            b"SERVER_ERROR out of memory storing object\r\nMN\r\n" => refused += 1,
            other => panic!("{}", shown(other)),
        }
    }
    assert!((500..990).contains(&refused), "{refused}");
    let mut first = shown_value("k0", &value);
    first.extend_from_slice(b"END\r\n");
    check(&mut client, b"get k0\r\n", &first);
    check(&mut client, b"delete k0\r\n", b"DELETED\r\n");
}

/// A touch and some other requests write the item again. If a full server has no space for it, the
/// reply must be an error. A miss would be wrong, because the item exists or should have been
/// created.
#[test]
fn requests_that_need_memory_get_an_error_and_not_a_miss() {
    let memory = 64 << 20;
    let options = Options { memory, when_full: WhenFull::Refuse, ..Options::default() };
    let mut worker = worker_with(options);
    let mut client = Client::new(&mut worker);
    let fill = |client: &mut Client<'_>, len: usize| {
        for i in 0.. {
            client.send(&set(&format!("{len}:{i}"), &value(len)));
            if client.take() != b"STORED\r\n" {
                return;
            }
        }
    };
    check(&mut client, &set("n", &value(20_000)), b"STORED\r\n");
    [30_000, 5_000, 200, 1].into_iter().for_each(|len| fill(&mut client, len));
    let refused = b"SERVER_ERROR out of memory\r\n";
    check(&mut client, b"touch n 100\r\n", refused);
    check(&mut client, b"touch n 100 noreply\r\nmn\r\n", b"MN\r\n");
    check(&mut client, b"mg n T100\r\n", refused);
    check(&mut client, b"mg none N100 v\r\n", refused);
    check(&mut client, b"mg none v\r\n", b"EN\r\n");
    // If a touch of one key is refused, the error must end the reply, even after answers to the
    // keys before it. The server must skip the remaining keys of the request.
    let long = [b"gat 100 missing", &b" n none"[..].repeat(1000)[..], b"\r\n"].concat();
    check(
        &mut client,
        &[b"gat 100 missing n 200:0\r\nmn\r\n", &long[..]].concat(),
        &[&refused[..], b"MN\r\n", refused].concat(),
    );
    let mut touch = vec![0x80, 0x1c, 0, 1, 4, 0, 0, 0, 0, 0, 0, 5, 1, 2, 3, 4];
    touch.extend_from_slice(&[0; 8]);
    touch.extend_from_slice(&[0, 0, 0, 100, b'n']);
    drop(client);
    let reply = Client::new(&mut worker).ask(&touch);
    assert_eq!(reply[..8], [0x81, 0x1c, 0, 0, 0, 0, 0, 0x82], "{}", shown(&reply));
    assert_eq!((&reply[12..16], &reply[24..]), (&[1, 2, 3, 4][..], &b"Out of memory"[..]));
}
