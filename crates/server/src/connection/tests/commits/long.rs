//! Tests of replies that take several calls: long values, long lines, and values that must be read
//! from the device.

use super::{Client, Flow, LOST, Store, shown};
use crate::net::Service;
use larder_engine::{Engine, ManualCleaner, Options};

#[test]
fn no_byte_of_a_long_reply_is_sent_before_its_commit() {
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

    // No byte of a value whose commit fails may ever be sent.
    writer.sends(&set(b'n'), b"");
    reader.sends(b"mg a v\r\nmn\r\n", b"");
    let mut several = store.client();
    several.sends(b"get a a\r\nmn\r\n", b"");
    store.fail();
    writer.gets(LOST);
    reader.gets(&[b"VA 300000\r\n", &value(b'o')[..], b"\r\nMN\r\n"].concat());
    // Only the first of two keys was answered before the commit failed, so the reply cannot be
    // replaced. The connection must close.
    several.gets(b"<EOF>");
    assert_eq!(store.buffers(), 0);
}

#[test]
fn very_long_retrievals_wait_for_commits_too() {
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

/// Stores an item `a` and calls `meanwhile` while `a` is still in memory. Then stores other items
/// until `a` is only on the device. Returns the store and the value of `a`.
pub(super) fn store_with_a_on_the_device(meanwhile: impl FnOnce(&Store)) -> (Store, Vec<u8>) {
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

/// A retrieval sees a changed value, and then the commit of the change fails. When the retrieval is
/// executed again, it must wait until the value before the change has been read from the device.
#[test]
fn a_retrieval_executed_again_may_read_the_device() {
    let (store, value) = store_with_a_on_the_device(|store| {
        assert_eq!(store.engine.stats().flash_item_bytes, 0);
    });
    let stats = store.engine.stats();
    assert!((10_000..stats.item_bytes).contains(&stats.flash_item_bytes), "{stats:?}");
    let mut writer = store.client();
    writer.send(b"replace a 0 0 3\r\nnew\r\n");
    assert_eq!(writer.flow, Flow::Park, "the key is compared with the record on the device");
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
fn a_long_value_is_sent_completely_although_its_frame_is_dropped() {
    let mut begun = None;
    let (store, value) = store_with_a_on_the_device(|store| {
        // The value is in memory when its sending begins. Before the sending continues, the store
        // drops the value's frame.
        let mut client = store.client();
        client.limit = 1000;
        client.input.extend_from_slice(b"get a\r\n");
        client.call();
        assert_eq!(client.flow, Flow::Drain);
        client.worker.sleep();
        begun = Some(client);
    });
    let whole = [b"VALUE a 0 10000\r\n", &value[..], b"\r\nEND\r\n"].concat();
    let mut begun = begun.unwrap();
    assert!(begun.more() == whole);
    let mut later = store.client();
    later.limit = 1000;
    assert_eq!(later.send(b"get a\r\n"), b"");
    assert_eq!(later.flow, Flow::Park);
    store.engine.serve_reads();
    let got = later.more();
    assert!(got == whole, "{}", shown(&got));
    assert_eq!(store.buffers(), 0);
}

/// Without a store, a value exists only in memory. While a long value is being sent, its rest must
/// stay readable, although its item is replaced and other items are evicted.
#[test]
fn a_value_being_sent_outlives_its_item() {
    // The shorter value shares a segment with other items. The longer value has its own memory
    // mapping.
    for len in [200_000, 1_000_000] {
        let options = Options { memory: 64 << 20, ..Options::default() };
        let engine = Engine::open(options).unwrap();
        let mut writer = Client::new(&engine);
        let mut store = |key: &str, value: &[u8]| {
            let head = format!("set {key} 0 0 {}\r\n", value.len());
            let mut reply = writer.send(&[head.as_bytes(), value, b"\r\n"].concat());
            while reply.is_empty() {
                std::thread::yield_now();
                reply = writer.more();
            }
            assert_eq!(reply, b"STORED\r\n");
        };
        let value: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
        store("a", &value);
        let mut reader = Client::new(&engine);
        reader.limit = 1000;
        reader.input.extend_from_slice(b"get a\r\n");
        reader.call();
        assert_eq!(reader.flow, Flow::Drain);
        reader.worker.sleep();
        store("a", b"another");
        (0..500).for_each(|n| store(&format!("other:{n}"), &value[..200_000]));
        assert!(engine.stats().totals.evictions > 0);
        let whole = [format!("VALUE a 0 {len}\r\n").as_bytes(), &value, b"\r\nEND\r\n"].concat();
        assert!(reader.more() == whole, "{len} bytes");
        assert_eq!(engine.stats().buffer_bytes, 0);
    }
}
