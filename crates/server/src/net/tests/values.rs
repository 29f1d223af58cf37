//! Tests of long values that the service receives itself, past the memory of the event loop. Every
//! byte of the input must reach the service once and in order.

use std::net::Shutdown;

use larder_disk::Random;

use super::*;

/// Returns `len` bytes of a value. Bytes that are lost, doubled or swapped change it.
fn value(random: &mut Random, len: usize) -> Vec<u8> {
    let mut word = random.bits();
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        bytes.extend_from_slice(&word.to_be_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Returns requests with long values and lines between them, and the replies.
fn requests(random: &mut Random) -> (Vec<u8>, Vec<u8>) {
    let (mut requests, mut replies) = (Vec::new(), Vec::new());
    for n in 0..random.between(1, 12) {
        if random.chance(70) {
            let len =
                random.pick(&[1, 500, 8_180, 8_192, 20_000, 33_000, 70_000, 200_000, 500_000]);
            let len = len + random.below(3) as usize;
            let value = value(random, len);
            requests.extend_from_slice(format!("value {}\n", value.len()).as_bytes());
            requests.extend_from_slice(&value);
            replies.extend_from_slice(&value);
        }
        for n in 0..random.pick(&[0, 0, 1, 3, 2_000]) {
            requests.extend_from_slice(format!("line {n}\n").as_bytes());
            replies.extend_from_slice(format!("line {n}\n").as_bytes());
        }
        requests.extend_from_slice(format!("end {n}\n").as_bytes());
        replies.extend_from_slice(format!("end {n}\n").as_bytes());
    }
    (requests, replies)
}

/// Sends `bytes` in pieces of random lengths.
fn send_in_pieces(stream: &mut TcpStream, mut bytes: &[u8], random: &mut Random) {
    let longest = random.pick(&[100, 5_000, 40_000, 1 << 20]);
    while !bytes.is_empty() {
        let (piece, rest) = bytes.split_at(bytes.len().min(random.between(1, longest) as usize));
        stream.write_all(piece).unwrap();
        bytes = rest;
        if random.one_in(4) {
            std::thread::yield_now();
        }
    }
}

#[test]
fn every_byte_around_long_values_arrives_once_and_in_order() {
    on_both(|options| {
        let server = Server::start(options);
        let clients = (1..=6).map(|seed| {
            let mut stream = server.connect();
            stream.set_nodelay(true).unwrap();
            std::thread::spawn(move || {
                let random = &mut Random::new(seed);
                let mut sent = 0;
                for _ in 0..20 {
                    let (requests, replies) = requests(random);
                    sent += requests.len();
                    let mut reader = stream.try_clone().unwrap();
                    let len = replies.len();
                    let reader = std::thread::spawn(move || read_exactly(&mut reader, len));
                    send_in_pieces(&mut stream, &requests, random);
                    assert!(reader.join().unwrap() == replies, "client {seed}");
                }
                sent
            })
        });
        let clients: Vec<JoinHandle<usize>> = clients.collect();
        let sent: usize = clients.into_iter().map(|client| client.join().unwrap()).sum();
        assert_eq!(server.sum(|c| &c.bytes_read), sent as u64);
        assert!(server.valve.received.load(SeqCst) > sent / 4, "few bytes were not copied");
        server.stop();
    });
}

/// While a client sends nothing but long values, the loop copies only the beginning of each.
#[test]
fn a_client_of_long_values_costs_few_copies() {
    const LEN: usize = 100_000;
    on_both(|options| {
        let server = Server::start(options);
        let mut client = server.connect();
        let mut value = value(&mut Random::new(1), LEN);
        for _ in 0..100 {
            client.write_all(&[format!("value {LEN}\n").as_bytes(), &value].concat()).unwrap();
            assert!(read_exactly(&mut client, LEN) == value);
            value.rotate_left(1);
        }
        assert!(server.valve.received.load(SeqCst) > 100 * LEN / 3);
        server.stop();
    });
}

#[test]
fn a_client_may_leave_in_the_middle_of_a_value() {
    on_both(|options| {
        let server = Server::start(options);
        for (sent, whole) in [(10, false), (50_000, false), (99_999, false), (100_000, true)] {
            for half_closed in [false, true] {
                let mut client = server.connect();
                let value = vec![b'v'; sent];
                let head = b"value 70000\n";
                // A first value shows the loop that the client sends long ones.
                client.write_all(&[&head[..], &[b'f'; 70_000]].concat()).unwrap();
                assert!(read_exactly(&mut client, 70_000) == [b'f'; 70_000]);
                client.write_all(&[b"value 100000\n", &value[..]].concat()).unwrap();
                if half_closed {
                    client.shutdown(Shutdown::Write).unwrap();
                    assert!(read_to_end(&mut client) == if whole { &value[..] } else { b"" });
                }
            }
        }
        until("all clients are gone", || server.sum(|c| &c.current_connections) == 0);
        server.stop();
    });
}
