//! The costs of restarts, and the versions they use up.

#[path = "common/store.rs"]
mod common;
#[path = "common/machine.rs"]
mod machine;

use common::store;
use larder_disk::{Device, SimDevice};
use larder_engine::{
    Durability, Engine, Expiry, ManualCleaner, OpenError, Options, Outcome, Session, Store,
    StoreError, Stored, WhenFull,
};
use larder_log::format::geometry::SUPERBLOCKS;
use larder_log::format::{BLOCK, Superblock, superblock};
use larder_log::record::MAX_SEQ;
use machine::{Machine, NOW};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

fn options(device: Arc<dyn Device>, durability: Durability) -> Options {
    let store = Some(store(device, durability));
    Options { memory: 8 << 20, max_item_size: 1 << 20, store, ..Options::default() }
}

fn set(session: &Session, key: &str, value: &[u8]) -> u64 {
    match session.store(&session.key(key.as_bytes()), Store::set(value, 0, Expiry::NEVER)) {
        Outcome::Ready(Stored::Stored { cas, .. })
        | Outcome::AfterCommit(Stored::Stored { cas, .. }, _) => cas,
        other => panic!("{other:?}"),
    }
}

/// Returns the superblock on a device.
fn read(device: &SimDevice) -> Superblock {
    let mut copies = [[0; BLOCK]; 2];
    for (copy, at) in copies.iter_mut().zip(SUPERBLOCKS) {
        device.read_at(at, copy).unwrap();
    }
    superblock::choose([&copies[0], &copies[1]]).expect("a store").0
}

fn change(device: &SimDevice, change: impl FnOnce(&mut Superblock)) {
    let mut superblock = read(device);
    change(&mut superblock);
    superblock.counter += 1;
    let mut block = [0; BLOCK];
    superblock.encode(&mut block);
    device.write_at(SUPERBLOCKS[superblock.copy()], &block).unwrap();
}

/// Each crash uses up the versions that were leased. When nearly none are left, a start must report
/// that. No start may report as damage what an earlier start wrote.
#[test]
fn a_store_that_has_used_its_versions_up_says_so() {
    let start = |device: &Arc<SimDevice>| {
        let device = Arc::<SimDevice>::clone(device);
        Engine::open_without_threads(options(device, Durability::Async))
    };
    let mut device = Arc::new(SimDevice::new(8 << 20, 1));
    drop(start(&device).unwrap());
    change(&device, |superblock| superblock.seq_limit = MAX_SEQ - (1 << 44) - (1 << 25));
    let mut before = 0;
    let used_up = loop {
        device = Arc::new(device.image());
        let engine = match start(&device) {
            Ok(engine) => engine,
            Err(OpenError::Store(StoreError::VersionsUsedUp)) => break true,
            Err(error) => panic!("{error}"),
        };
        let mut session = engine.session(std::task::Waker::noop().clone());
        session.tick(NOW);
        let cas = set(&session, "key", b"value");
        assert!(cas > before && engine.commit());
        before = cas;
    };
    assert!(used_up && before > 0);
    // A start is also refused if the very last version is used up. Another lane of the store may
    // have used it.
    change(&device, |superblock| superblock.seq_limit = MAX_SEQ);
    assert!(matches!(start(&device), Err(OpenError::Store(StoreError::VersionsUsedUp))));
}

#[test]
fn a_clean_stop_uses_no_versions_up() {
    let device = Arc::new(SimDevice::new(8 << 20, 1));
    let mut last = 0;
    for round in 0..5 {
        let shared = Arc::<SimDevice>::clone(&device);
        let machine = Machine::open(shared.clone(), options(shared, Durability::Async));
        let cas = set(&machine.session, &format!("key{round}"), b"value");
        assert!(cas > 0);
        last = cas.max(last);
        machine.engine.close().unwrap();
        assert!(read(&machine.device).seq_limit < 1000);
    }
    assert!(last < 1000, "{last} versions are used up");
}

/// A device that counts the bytes that are read.
#[derive(Debug)]
struct Counting {
    device: SimDevice,
    read: AtomicU64,
}

impl Device for Counting {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        self.device.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.device.write_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.device.sync()
    }
}

/// The contents of a store that was used without durability when its server died are invalid.
/// Neither the next start nor later ones may read them.
#[test]
fn a_store_without_durability_is_not_read_after_a_crash() {
    const SIZE: u64 = 16 << 20;
    let image = |before: &Counting| {
        Arc::new(Counting { device: before.device.image(), read: AtomicU64::new(0) })
    };
    let open = |device: &Arc<Counting>, durability, seed| {
        let mut options = options(Arc::<Counting>::clone(device), durability);
        options.store.as_mut().unwrap().devices[0].seeds =
            [seed, !seed, seed ^ 0x5555_5555_5555_5555];
        let engine = Engine::open_without_threads(options).unwrap();
        let mut session = engine.session(std::task::Waker::noop().clone());
        session.tick(NOW);
        (engine, session, device.read.swap(0, Ordering::Relaxed))
    };
    let device = Counting { device: SimDevice::new(SIZE, 1), read: AtomicU64::new(0) };
    let device = Arc::new(device);
    let (engine, mut session, _) = open(&device, Durability::None, 0x0123_4567_89AB_CDEF);
    for key in 0..800 {
        set(&session, &format!("{key}"), &[1; 10_000]);
        assert!(engine.commit());
        session.tick(NOW);
        engine.clean(&mut Default::default());
    }
    let device = image(&device);
    let (engine, session, read) = open(&device, Durability::Async, 0x1331_7227_4114_9009);
    assert!(engine.recovered().unwrap().discarded && engine.stats().items == 0);
    assert!(read < SIZE / 50, "{read} bytes of discarded data are read");
    set(&session, "key", b"value");
    assert!(engine.commit());
    let device = image(&device);
    let (engine, _, read) = open(&device, Durability::Async, 0x7007_1881_2992_3663);
    assert_eq!(engine.stats().items, 1);
    let recovered = engine.recovered().unwrap();
    assert_eq!((recovered.discarded, recovered.damaged_segments), (false, 0));
    // The start reads the headers of all places, and the records that were written after the
    // discard.
    assert!(read < SIZE / 4, "{read} bytes are read, including discarded data");
}

/// If a client sets a large value and disconnects while it waits for space, no places may stay
/// reserved for it. Other items must be able to fill the store again.
#[test]
fn an_abandoned_large_value_keeps_no_places_free() {
    const VALUE: usize = 4 << 20;
    let device = Arc::new(SimDevice::new(24 << 20, 1));
    let shared = Arc::<SimDevice>::clone(&device);
    let mut options = options(shared, Durability::Async);
    (options.memory, options.max_item_size) = (16 << 20, 2 * VALUE as u64);
    options.when_full = WhenFull::Evict;
    let mut machine = Machine::open(device, options);
    let fill = |machine: &mut Machine, keys: std::ops::Range<u32>| {
        for key in keys {
            let (name, value) = (format!("key{key}"), [1; 5000]);
            let store = || Store::set(&value, 0, Expiry::NEVER);
            while !matches!(
                machine.session.store(&machine.session.key(name.as_bytes()), store()),
                Outcome::Ready(_)
            ) {
                machine.engine.clean(&mut machine.cleaner);
                assert!(machine.engine.commit());
                machine.session.tick(NOW);
            }
        }
    };
    let free = |machine: &Machine| {
        let stats = machine.engine.stats();
        stats.fast_bytes - stats.fast_used
    };
    fill(&mut machine, 0..6000);
    assert!(free(&machine) < 2 << 20);
    let value = vec![1; VALUE];
    let abandoned = (0..100).any(|_| {
        let store = Store::set(&value, 0, Expiry::NEVER);
        let stored = machine.session.store(&machine.session.key(b"large"), store);
        assert!(matches!(stored, Outcome::NeedsSpace), "{stored:?}");
        // The value receives its memory first, then its places.
        (0..8).any(|_| {
            machine.engine.clean(&mut machine.cleaner);
            assert!(machine.engine.commit());
            machine.session.tick(NOW);
            free(&machine) > 2 << 20
        })
    });
    assert!(abandoned);
    // The client does not come back, so the reservation must end.
    for _ in 0..100 {
        machine.engine.clean(&mut machine.cleaner);
        assert!(machine.engine.commit());
        machine.session.tick(NOW);
    }
    fill(&mut machine, 10_000..16_000);
    assert!(
        free(&machine) < 2 << 20,
        "{} bytes are still reserved for an abandoned write",
        free(&machine)
    );
}

/// A start with too little memory for the index must be refused and must change nothing. The error
/// must name the smallest memory size that suffices.
#[test]
fn memory_too_small_for_the_index_is_refused_with_the_minimum() {
    const KEYS: u32 = 250_000;
    const STEP: u64 = 1 << 20;
    let device = Arc::new(SimDevice::new(64 << 20, 1));
    let open = |device: &Arc<SimDevice>, memory: u64| {
        let options = options(Arc::<SimDevice>::clone(device), Durability::Async);
        Engine::open_without_threads(Options { memory, ..options })
    };
    let engine = open(&device, 64 << 20).unwrap();
    let mut session = engine.session(Waker::noop().clone());
    let mut cleaner = ManualCleaner::default();
    for key in 0..KEYS {
        session.tick(NOW);
        let name = format!("k{key}");
        let store = || Store::set(b"v", 0, Expiry::NEVER);
        while !matches!(session.store(&session.key(name.as_bytes()), store()), Outcome::Ready(_)) {
            engine.clean(&mut cleaner);
            assert!(engine.commit());
            session.tick(NOW);
        }
    }
    assert!(engine.commit());
    assert_eq!(engine.stats().items, u64::from(KEYS));
    drop(session);
    let crashed = Arc::new(device.crash(3));
    engine.close().unwrap();
    drop(engine);
    let least = |device: &Arc<SimDevice>, memory| match open(device, memory) {
        Err(OpenError::MemoryTooSmall { minimum }) => minimum,
        other => panic!("{:?}", other.map(|engine| engine.stats())),
    };
    // The first device has the index image of a clean stop; for the other, the start reads the log.
    for device in [device, crashed] {
        let writes = device.counts().writes;
        let minimum = least(&device, 8 << 20);
        assert_eq!(least(&device, minimum - STEP), minimum);
        assert_eq!(device.counts().writes, writes, "a start that was refused has written");
        let engine = open(&device, minimum).unwrap();
        let stats = engine.stats();
        assert_eq!(stats.items, u64::from(KEYS));
        assert!(stats.index_bytes <= minimum, "{minimum}: {stats:?}");
        let mut session = engine.session(Waker::noop().clone());
        let mut cleaner = ManualCleaner::default();
        let mut turn = |session: &mut Session| {
            engine.serve_reads();
            engine.clean(&mut cleaner);
            assert!(engine.commit());
            session.tick(NOW);
        };
        for key in (0..KEYS).step_by(10_007) {
            let name = format!("k{key}");
            let key = session.key(name.as_bytes());
            for round in 0.. {
                assert!(round < 1000, "{name} waits for ever: {:?}", engine.stats());
                match session.get(&key).map(|item| item.is_some()) {
                    Outcome::Ready(found) => {
                        assert!(found, "{name}");
                        break;
                    }
                    Outcome::NeedsRead | Outcome::NeedsSpace => {}
                    other => panic!("{name}: {other:?}"),
                }
                turn(&mut session);
            }
            for round in 0.. {
                assert!(round < 1000, "{name} waits for ever: {:?}", engine.stats());
                match session.store(&key, Store::set(b"new", 0, Expiry::NEVER)) {
                    Outcome::Ready(_) => break,
                    Outcome::NeedsRead | Outcome::NeedsSpace => {}
                    other => panic!("{name}: {other:?}"),
                }
                turn(&mut session);
            }
        }
    }
}

/// A start after a crash reads the header of each place on its own, but metas of neighbouring
/// places together. So it waits for the device about once per place.
#[test]
fn a_start_reads_about_once_per_place() {
    // Reads of the superblock, tail places and other data outside the places.
    const OTHERS: u64 = 24;
    let mut device = Arc::new(SimDevice::new(64 << 20, 1));
    let start = |device: &Arc<SimDevice>| {
        let device = Arc::<SimDevice>::clone(device);
        drop(Engine::open_without_threads(options(device, Durability::Async)).unwrap());
    };
    start(&device);
    let places = u64::from(read(&device).geometry.segment_count());
    assert!(places > 10 * OTHERS);
    device = Arc::new(device.image());
    start(&device);
    let reads = device.counts().reads;
    assert!(reads <= places + OTHERS, "{reads} reads of {places} places");
}
