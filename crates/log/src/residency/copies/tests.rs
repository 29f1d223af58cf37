//! Tests that copies behave like a plain map, also under concurrent readers.

use super::*;
use crate::Participant;
use crate::record::{Fields, Layout, write_head};
use larder_disk::Random;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool as Flag;
use std::thread;

const FRAME: usize = 64 << 10;

struct World {
    copies: Copies,
    frames: Arc<Frames>,
    budget: Arc<Budget>,
    epochs: Arc<Epochs>,
}

impl World {
    /// Creates a world with room for `frames` frames.
    fn new(frames: u64) -> World {
        let budget = Arc::new(Budget::new(frames * FRAME as u64 + (1 << 20)));
        let frames = Arc::new(Frames::reserve(64 * FRAME as u64, FRAME).expect("memory"));
        let epochs = Arc::<Epochs>::default();
        let shared = (Arc::clone(&frames), Arc::clone(&budget), Arc::clone(&epochs));
        let copies = Copies::new(64, FRAME, shared.0, shared.1, shared.2);
        World { copies, frames, budget, epochs }
    }

    fn keep(&self, n: u64, queue: Queue, spare: usize) -> Kept {
        let bytes = record(n);
        // SAFETY: the bytes are a whole record.
        let record = unsafe { Record::at(bytes.as_ptr().cast(), || 0) };
        // Creates or enlarges the table, as the cleaner does on request.
        self.copies.provide_slots(&mut self.copies.lock());
        self.copies.keep(id(n), &record, queue, spare)
    }

    /// Returns the value of the copy of the nth record, and counts a read of it.
    fn value(&self, n: u64, _awake: &Participant) -> Option<Vec<u8>> {
        // SAFETY: the participant is awake, and the result is copied at once.
        let (record, slot, seen) = unsafe { self.copies.find(id(n)) }?;
        seen.count_read(slot);
        Some(record.value().to_vec())
    }

    fn has(&self, n: u64, _awake: &Participant) -> bool {
        // SAFETY: the participant is awake.
        unsafe { self.copies.find(id(n)) }.is_some()
    }

    fn evict(&self, queue: Queue) -> bool {
        self.copies.evict(queue, |_, _| true, |_, _| {})
    }

    fn frames_of(&self, queue: Queue) -> usize {
        self.copies.lock().queues[queue as usize].len()
    }
}

fn id(n: u64) -> RecordId {
    let address = Address::new(1 + (n >> 10) as u32, (n as usize & 1023) * 8);
    RecordId { address, generation: (n % 3) as u32 }
}

fn value(n: u64) -> Vec<u8> {
    vec![n as u8; 100 + n as usize % 900]
}

/// Returns the nth record.
fn record(n: u64) -> Vec<u64> {
    let (key, value) = (n.to_le_bytes(), value(n));
    let fields = Fields { seq: n, ..Fields::default() };
    let layout = Layout::of(&fields, key.len(), value.len());
    let mut words = vec![0u64; layout.size() / 8];
    let at = words.as_mut_ptr().cast::<u8>();
    // SAFETY: the words are as long as the record.
    unsafe {
        write_head(at, &layout, &fields, &key);
        at.add(layout.header + layout.key).copy_from_nonoverlapping(value.as_ptr(), value.len());
    }
    words
}

fn awake(world: &World) -> Participant {
    let mut participant = world.epochs.join();
    participant.tick();
    participant
}

#[test]
fn a_copy_is_found_by_address_and_generation_alone() {
    let world = World::new(16);
    let reader = awake(&world);
    assert_eq!(world.value(5, &reader), None, "before there is a table");
    for n in 0..500 {
        assert_eq!(world.keep(n, Queue::Small, 0), Kept::Yes);
    }
    for n in 0..500 {
        assert_eq!(world.value(n, &reader), Some(value(n)));
        let next = RecordId { generation: id(n).generation + 1, ..id(n) };
        // SAFETY: the reader is awake.
        let reused = unsafe { world.copies.find(next) };
        assert!(reused.is_none(), "the segment has been reused");
    }
    assert_eq!(world.value(500, &reader), None);
}

#[test]
fn copying_a_record_again_counts_as_a_read() {
    let world = World::new(16);
    let reader = awake(&world);
    (0..100).for_each(|n| assert_eq!(world.keep(n, Queue::Small, 0), Kept::Yes));
    (0..10).for_each(|n| assert_eq!(world.keep(n, Queue::Small, 0), Kept::Yes));
    assert_eq!(world.copies.lock().slots, 100);
    while world.evict(Queue::Small) {}
    assert!((0..100).all(|n| world.has(n, &reader) == (n < 10)), "the ten go round");
}

#[test]
fn eviction_keeps_copies_once_for_each_read() {
    let world = World::new(16);
    let mut reader = awake(&world);
    (0..300).for_each(|n| assert_eq!(world.keep(n, Queue::Small, 0), Kept::Yes));
    (0..300).filter(|n| n % 3 == 0).for_each(|n| drop(world.value(n, &reader)));
    while world.frames_of(Queue::Small) > 0 {
        assert!(world.evict(Queue::Small));
    }
    let main = world.frames_of(Queue::Main);
    for n in 0..300 {
        assert_eq!(world.value(n, &reader), (n % 3 == 0).then(|| value(n)), "{n}");
    }
    // The loop above read each copy once. So each copy survives one round of evictions, but not a
    // second.
    for _ in 0..main {
        assert!(world.evict(Queue::Main));
    }
    let left = (0..300).filter(|n| world.has(*n, &reader)).count();
    assert_eq!(left, 100);
    while world.evict(Queue::Main) {}
    assert!((0..300).all(|n| !world.has(n, &reader)));
    assert_eq!(world.copies.lock().slots, 0);

    let used = world.frames.resident();
    world.copies.reap();
    assert!(world.copies.retired_frames() > 0, "the reader may still look at them");
    reader.tick();
    world.copies.reap();
    assert_eq!(world.copies.retired_frames(), 0);
    assert_eq!(world.frames.resident(), used, "they are ready for others");
}

#[test]
fn eviction_keeps_wanted_copies_and_reports_the_others() {
    let world = World::new(16);
    let reader = awake(&world);
    (0..100).for_each(|n| assert_eq!(world.keep(n, Queue::Small, 0), Kept::Yes));
    (0..100).for_each(|n| drop(world.value(n, &reader)));
    let heard = Mutex::new(Vec::new());
    let wanted = |address: Address, _: &Record<'_>| address == id(7).address;
    let forgotten = |address: Address, record: &Record<'_>| {
        assert_eq!(id(record.seq()).address, address);
        heard.lock().unwrap().push(record.seq());
    };
    while world.copies.evict(Queue::Small, wanted, forgotten) {}
    let heard = heard.into_inner().unwrap();
    assert_eq!(heard.len(), 99);
    assert!(!heard.contains(&7));
    assert_eq!(world.value(7, &reader), Some(value(7)));
}

#[test]
fn once_copies_are_evicted_only_recently_read_records_are_copied() {
    let world = World::new(16);
    let _reader = awake(&world);
    // SAFETY: the reader is awake.
    let worth = |n, was_read| unsafe { world.copies.admits(id(n).address, was_read) };
    assert!(worth(0, true) && !worth(0, false), "there is room");
    (0..100).for_each(|n| assert_eq!(world.keep(n, Queue::Small, 0), Kept::Yes));
    assert!(worth(200, true));
    assert!(world.evict(Queue::Small));
    assert!(!worth(200, true), "ever is not lately");
    assert!(worth(200, false));
}

#[test]
fn copies_leave_frames_to_writers_and_ask_the_cleaner_once() {
    let world = World::new(8);
    let mut n = 0;
    while world.keep(n, Queue::Small, 3) == Kept::Yes {
        n += 1;
    }
    assert!(world.frames.available(&world.budget) <= 3);
    assert_eq!(world.keep(n, Queue::Small, 3), Kept::No, "the first refusal has told it");
    assert!(world.copies.wants_frame.load(Ordering::Relaxed));
    let large = FRAME / LARGEST_SHARE;
    let bytes = vec![0u64; large];
    let layout = Layout::of(&Fields::default(), 1, large);
    // SAFETY: the words are longer than the record.
    let record = unsafe {
        write_head(bytes.as_ptr().cast_mut().cast(), &layout, &Fields::default(), b"k");
        Record::at(bytes.as_ptr().cast(), || 0)
    };
    let kept = world.copies.keep(id(n), &record, Queue::Small, 0);
    assert_eq!(kept, Kept::No, "it would take too much of a frame");
}

#[test]
fn the_table_grows_and_loses_next_to_nothing() {
    let world = World::new(60);
    let reader = awake(&world);
    let mut kept = HashMap::new();
    for n in 0.. {
        if world.keep(n, Queue::Small, 0) != Kept::Yes {
            break;
        }
        kept.insert(n, value(n));
    }
    let slots = |world: &World| world.copies.lock().slots;
    assert!(kept.len() > FIRST_BUCKETS * BUCKET, "it had to grow: {}", kept.len());
    let found = kept.iter().filter(|(n, value)| world.value(**n, &reader).as_ref() == Some(value));
    let found = found.count();
    assert_eq!(found, slots(&world));
    assert!(found * 100 >= kept.len() * 98, "{found} of {}", kept.len());
}

/// Readers check the copies that they find while one thread constantly copies, evicts and reuses
/// frames. A copy must never hold another record's value.
#[test]
fn readers_never_see_a_frame_reused() {
    const RECORDS: u64 = 3000;
    let world = World::new(8);
    let (ended, hitting) = (Flag::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for seed in 1..3u64 {
            let (world, ended, hitting) = (&world, &ended, &hitting);
            scope.spawn(move || {
                let mut reader = world.epochs.join();
                let (mut random, mut hits) = (Random::new(seed), 0);
                while !ended.load(Ordering::Relaxed) {
                    reader.tick();
                    for _ in 0..50 {
                        let n = random.below(RECORDS);
                        if let Some(found) = world.value(n, &reader) {
                            assert_eq!(found, value(n), "the copy of {n}");
                            hitting.fetch_add(u64::from(hits == 0), Ordering::Relaxed);
                            hits += 1;
                        }
                    }
                }
                reader.sleep();
            });
        }
        let all_hit = || hitting.load(Ordering::Relaxed) == 2;
        for n in (0..10_000_000u64).take_while(|n| *n < 20_000 || !all_hit()) {
            if world.keep(n * 7 % RECORDS, Queue::Small, 1) != Kept::Yes {
                world.evict(if n % 3 == 0 { Queue::Main } else { Queue::Small });
                while world.copies.retired_frames() > 4 {
                    world.copies.reap();
                    thread::yield_now();
                }
            }
        }
        ended.store(true, Ordering::Relaxed);
        assert!(all_hit());
    });
}
