//! Clean stops: the next start loads the index from its image. While it serves, it reads back the
//! records that were in memory before the stop. If the image cannot be used, the start reads the
//! log.

#[path = "common/store.rs"]
mod common;

use std::sync::Arc;
use std::task::Waker;

use common::store;
use larder_disk::{Device, SimDevice};
use larder_engine::{Durability, Engine, Expiry, ManualCleaner, Options, Outcome, Session, Store};
use larder_log::recover::read_superblock;

const ITEMS: usize = 3000;
const LARGE: usize = 600_000;

fn options(device: &Arc<SimDevice>, memory: u64) -> Options {
    let store = store(Arc::clone(device) as Arc<dyn Device>, Durability::Async);
    Options { memory, max_item_size: 1 << 20, store: Some(store), ..Options::default() }
}

fn open(device: &Arc<SimDevice>, memory: u64) -> (Arc<Engine>, Session) {
    let engine = Engine::open_without_threads(options(device, memory)).unwrap();
    let mut session = engine.session(Waker::noop().clone());
    session.tick(1);
    (engine, session)
}

/// Repeats a call until it is done. A call may wait only for the read of its record.
fn ready<T>(
    engine: &Engine,
    session: &mut Session,
    ask: impl for<'a> Fn(&'a Session) -> Outcome<T>,
) -> T {
    loop {
        match ask(session) {
            Outcome::Ready(answer) => return answer,
            Outcome::NeedsRead => assert!(engine.serve_reads()),
            _ => panic!("nothing but a read is waited for"),
        }
        session.tick(1);
    }
}

fn set(engine: &Engine, session: &mut Session, name: &str, value: &[u8]) {
    ready(engine, session, |session| {
        let store = Store::set(value, 7, Expiry::NEVER);
        session.store(&session.key(name.as_bytes()), store).map(|_| ())
    });
}

fn delete(engine: &Engine, session: &mut Session, name: &str) {
    ready(engine, session, |session| {
        session.delete(&session.key(name.as_bytes()), &Default::default()).map(|_| ())
    });
}

fn get(engine: &Engine, session: &mut Session, name: &str) -> Option<Vec<u8>> {
    ready(engine, session, |session| {
        let found = session.get(&session.key(name.as_bytes()));
        found.map(|item| item.map(|item| item.value().to_vec()))
    })
}

fn value(n: usize) -> Vec<u8> {
    format!("value {n} ").repeat(1 + n % 20).into_bytes()
}

/// Stores items, overwrites all of them and deletes every third. Also stores a large item. Then
/// stops cleanly.
fn fill_and_close(device: &Arc<SimDevice>) {
    let (engine, mut session) = open(device, 16 << 20);
    assert!(!engine.recovered().unwrap().from_image);
    for n in 0..ITEMS {
        set(&engine, &mut session, &format!("key{n}"), b"older");
        session.tick(1);
    }
    for n in 0..ITEMS {
        set(&engine, &mut session, &format!("key{n}"), &value(n));
        session.tick(1);
    }
    for n in (0..ITEMS).step_by(3) {
        delete(&engine, &mut session, &format!("key{n}"));
        session.tick(1);
    }
    set(&engine, &mut session, "large", &vec![b'l'; LARGE]);
    drop(session);
    engine.close().unwrap();
}

fn check(engine: &Engine, session: &mut Session) {
    for n in 0..ITEMS {
        let expected = (n % 3 != 0).then(|| value(n));
        assert_eq!(get(engine, session, &format!("key{n}")), expected, "key{n}");
    }
    assert_eq!(get(engine, session, "large").map(|value| value.len()), Some(LARGE));
    assert_eq!(engine.stats().items, (ITEMS - ITEMS / 3 + 1) as u64);
}

#[test]
fn the_next_start_takes_the_index_from_the_image() {
    let device = Arc::new(SimDevice::new(64 << 20, 1));
    fill_and_close(&device);
    for _ in 0..3 {
        let (engine, mut session) = open(&device, 16 << 20);
        let recovered = engine.recovered().unwrap();
        assert!(recovered.from_image && recovered.clean, "{recovered:?}");
        check(&engine, &mut session);
        set(&engine, &mut session, "key0", b"written after the start");
        delete(&engine, &mut session, "key0");
        drop(session);
        engine.close().unwrap();
    }
}

#[test]
fn items_that_were_in_memory_are_read_back() {
    let device = Arc::new(SimDevice::new(64 << 20, 1));
    fill_and_close(&device);
    let (engine, mut session) = open(&device, 16 << 20);
    assert!(matches!(session.get(&session.key(b"key1")), Outcome::NeedsRead));
    session.tick(1);
    let mut cleaner = ManualCleaner::default();
    while engine.clean(&mut cleaner) {
        session.tick(1);
    }
    let reads = device.counts().reads;
    check(&engine, &mut session);
    assert_eq!(device.counts().reads, reads, "everything is in memory");
}

#[test]
fn an_image_is_good_for_one_start() {
    let device = Arc::new(SimDevice::new(64 << 20, 1));
    fill_and_close(&device);
    let (engine, mut session) = open(&device, 16 << 20);
    delete(&engine, &mut session, "key1");
    set(&engine, &mut session, "key2", b"newer");
    assert!(engine.commit());
    // The server dies without a clean stop.
    drop((engine, session));
    let (engine, mut session) = open(&device, 16 << 20);
    assert!(!engine.recovered().unwrap().from_image);
    assert_eq!(get(&engine, &mut session, "key1"), None);
    assert_eq!(get(&engine, &mut session, "key2").as_deref(), Some(&b"newer"[..]));
    assert_eq!(get(&engine, &mut session, "key4"), Some(value(4)));
}

#[test]
fn an_unusable_image_loses_no_items() {
    let image = |device: &SimDevice| {
        let superblock = read_superblock(device).unwrap().unwrap();
        assert!(superblock.image_segment != 0 && superblock.image_bytes > 0);
        superblock.geometry.segment(superblock.image_segment)
    };
    for flipped in [0, 70, 5000, 100_000] {
        let device = Arc::new(SimDevice::new(64 << 20, 1));
        fill_and_close(&device);
        let at = image(&device) + flipped;
        let mut byte = [0];
        device.read_at(at, &mut byte).unwrap();
        device.write_at(at, &[byte[0] ^ 4]).unwrap();
        let (engine, mut session) = open(&device, 16 << 20);
        assert!(!engine.recovered().unwrap().from_image, "{flipped}");
        check(&engine, &mut session);
    }
    // A different memory size leads to a different number of stripes, so the image cannot be used.
    let device = Arc::new(SimDevice::new(64 << 20, 1));
    fill_and_close(&device);
    let (engine, mut session) = open(&device, 160 << 20);
    assert!(!engine.recovered().unwrap().from_image);
    check(&engine, &mut session);
}
