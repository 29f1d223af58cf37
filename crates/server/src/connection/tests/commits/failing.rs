//! Tests of the replies to requests when a commit that the reply waits for fails.

use super::{Client, Flow, InputBuffer, LOST, OutputMemory, Store};
use crate::net::Service;
use larder_disk::Random;

#[test]
fn a_lost_write_gets_an_error() {
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
fn a_lost_binary_write_gets_an_error_with_its_opaque() {
    let store = Store::new();
    let mut client = store.client();
    // The test sends a quiet set (0x11), which gets a reply only on an error, and a normal set
    // (0x01).
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
fn a_retrieval_of_a_lost_write_is_executed_again() {
    let store = Store::new();
    let mut writer = store.client();
    writer.sends(b"set a 0 0 3\r\nold\r\nset gone 0 0 1\r\nx\r\n", b"");
    store.commit();
    writer.woken();
    writer.sends(b"set a 0 0 9\r\nnot kept!\r\ndelete gone\r\nset made 0 0 1\r\nx\r\n", b"");
    let mut reader = store.client();
    reader.sends(b"get a gone made\r\nmg gone v\r\nmg gone v q\r\nmg made\r\nmn\r\n", b"");
    // The failed commit also undoes the change of this client, so the client's second get must show
    // the old value.
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
fn a_retrieval_executed_again_may_wait_for_another_commit() {
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

/// A retrieval that is executed again must not see a change that the same client sent after it. If
/// such a change has taken effect, the retrieval must get an error instead.
#[test]
fn a_retrieval_never_sees_a_later_change_of_its_client() {
    let store = Store::new();
    let mut writer = store.client();
    writer.sends(b"set a 0 0 5\r\nfirst\r\n", b"");
    let mut reader = store.client();
    reader.sends(b"get a\r\n", b"");
    store.fail();
    // Here `go_on` executes the next input before `release` handles the failed commit. The same
    // happens if a commit fails during a call of the service.
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

/// A refused set with a value that is too large removes the old value. This removal must be durable
/// before the refusal is sent.
#[test]
fn the_reply_to_a_refused_set_waits_for_the_removal() {
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

#[test]
fn no_client_sees_a_number_before_it_is_durable() {
    for seed in 0..20u64 {
        let store = Store::new();
        let mut clients: Vec<Client> = (0..5).map(|_| store.client()).collect();
        clients[0].send(b"set n 0 0 1\r\n0\r\n");
        store.commit();
        clients[0].gets(b"STORED\r\n");
        let mut random = Random::new(seed);
        let (mut counted, mut durable) = (Vec::new(), 0);
        for _ in 0..300 {
            let at = random.below(5) as usize;
            let received = match random.below(4) {
                0 => clients[at].send(b"get n\r\n"),
                1 | 2 => clients[at].send(b"incr n 1\r\nget n\r\n"),
                _ => {
                    if random.below(3) == 0 {
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
