use super::*;
use larder_log::SegmentNumber;
use larder_log::format::KeyHash;
use larder_log::memory::mapping::{HUGE_PAGE, PAGE};
use std::sync::atomic::{AtomicBool as Flag, AtomicU64 as Count, Ordering as Order};
use std::thread;

fn key(number: u64) -> Key<'static> {
    let lo = (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    Key::of_hash(KeyHash { lo: lo ^ lo >> 29, hi: 0 })
}

fn address(number: u64) -> Address {
    Address::new(1 + (number >> 14) as SegmentNumber, (number as usize & 0x3FFF) << 6)
}

/// Inserts keys; each key's slot leads to a different address.
fn insert(index: &Index, numbers: Range<u64>) {
    for n in numbers {
        let key = key(n);
        let guard = index.lock(&key);
        let place = guard.vacate(&key).unwrap();
        guard.fill(place, Slot::new(key.tag(), 0, address(n)), 1);
    }
}

fn finds(index: &Index, n: u64) -> bool {
    let wanted = |slot: Slot| (slot.address() == address(n)).then_some(());
    // SAFETY: the test's thread is awake.
    unsafe { index.find(&key(n), wanted) }.is_some()
}

/// A client can make keys that share their buckets. Such keys must be refused once those buckets
/// are full, and must not make the table grow.
#[test]
fn keys_made_to_collide_do_not_make_tables_grow() {
    let epochs = Arc::new(Epochs::default());
    let budget = Arc::new(Budget::new(256 << 20));
    let index = Index::new(64 << 20, 64 << 20, false, &budget, &epochs).unwrap();
    // Adjacent positions have the same first bucket in all but the largest tables, so these keys
    // collide.
    let lo = |number: u64| 0x55_0000_0000_0000 + 1000 + number % 4;
    let keys = (0..400).map(|number| Key::of_hash(KeyHash { lo: lo(number), hi: number as u32 }));
    let (mut placed, mut last) = (0, Ok(()));
    for (number, key) in keys.enumerate() {
        let guard = index.lock(&key);
        let slot = Slot::new(key.tag(), 0, address(number as u64));
        last = guard.vacate(&key).map(|place| {
            guard.fill(place, slot, 1);
            placed += 1;
        });
    }
    assert_eq!(last, Err(NoSlot::Crowded));
    assert!((8..=5 * bucket::SLOTS).contains(&placed), "{placed} keys have places");
    assert_eq!(index.pages.used_bytes(), (table::MIN_PAGES * PAGE) as u64);
    assert!(!index.take_full(), "nothing would be gained by an eviction");
    // Other keys of the stripe must get places, and the table must grow for them.
    let mut refused = 0;
    let others = (0..5000_u64).map(|number| number.wrapping_mul(0x9E37_79B9) & 0xFF_FFFF);
    for (number, position) in others.enumerate() {
        let key = Key::of_hash(KeyHash { lo: lo(0) & !0xFF_FFFF | position, hi: 0 });
        let guard = index.lock(&key);
        match guard.vacate(&key) {
            Ok(place) => guard.fill(place, Slot::new(key.tag(), 0, address(number as u64)), 1),
            Err(_) => refused += 1,
        }
    }
    assert!(refused < 5, "{refused} keys found both buckets full");
}

/// Calls [`Index::tidy`] at each of these seconds, repeatedly until it has no more work in that
/// second.
fn tidy(index: &Index, participant: &mut larder_log::Participant, seconds: Range<u32>) {
    for now in seconds {
        while index.tidy(now) {}
        participant.tick();
        index.reap();
    }
}

/// A writer whose table grows after a flush frees part of the tables that the flush retired, not
/// all.
#[test]
fn tables_retired_by_a_flush_are_freed_in_parts() {
    let epochs = Arc::new(Epochs::default());
    let budget = Arc::new(Budget::new(256 << 20));
    let index = Index::new(64 << 20, 64 << 20, false, &budget, &epochs).unwrap();
    let mut participant = epochs.join();
    participant.tick();
    insert(&index, 0..1_000_000);
    participant.tick();
    index.reap();
    let used = index.pages.used_bytes();
    index.clear(|_| {});
    participant.tick();
    insert(&index, 0..1);
    let (part, left) = (REAPED_PAGES as u64 * PAGE as u64, index.pages.used_bytes());
    assert!(used - 2 * part < left && left < used, "{used} bytes became {left}");
    index.reap();
    assert!(!index.has_retired() && index.pages.used_bytes() <= 2 * PAGE as u64);
    index.clear(|_| {});
    assert_eq!(index.lock_retired().len(), 1, "stripes without a table leave none");
}

#[test]
fn keys_are_found_while_tables_are_moved_close_together() {
    const KEYS: u64 = 500_000;
    let epochs = Arc::new(Epochs::default());
    let budget = Arc::new(Budget::new(256 << 20));
    let index = Index::new(64 << 20, 64 << 20, false, &budget, &epochs).unwrap();
    let empty = budget.used();
    let mut participant = epochs.join();
    participant.tick();
    insert(&index, 0..KEYS);
    participant.tick();
    index.reap();
    let used = budget.used();

    let (done, reads) = (Flag::new(false), Count::new(0));
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut participant = epochs.join();
            let mut looked = 0;
            while !done.load(Order::Relaxed) {
                participant.tick();
                for _ in 0..100 {
                    assert!(finds(&index, looked % KEYS), "{}", looked % KEYS);
                    looked += 1;
                }
                reads.store(looked, Order::Relaxed);
            }
            participant.sleep();
        });
        while reads.load(Order::Relaxed) == 0 && !reader.is_finished() {
            thread::yield_now();
        }
        tidy(&index, &mut participant, 1000..1012);
        done.store(true, Order::Relaxed);
        reader.join().unwrap();
    });
    tidy(&index, &mut participant, 1012..1040);
    assert!((0..KEYS).all(|n| finds(&index, n)));
    let (chunks, full) = index.pages.chunks();
    assert!(full + 1 >= chunks, "{full} of {chunks} chunks");
    let holes = budget.used() - used;
    assert!(holes <= (full * HUGE_PAGE / 16) as u64, "{holes} bytes resident for nothing");

    // Tables that grow, move or are freed must release the unused pages of their huge pages.
    insert(&index, KEYS..KEYS * 2);
    assert!((0..KEYS * 2).all(|n| finds(&index, n)));
    tidy(&index, &mut participant, 1040..1060);
    assert!((0..KEYS * 2).all(|n| finds(&index, n)));
    index.clear(|_| ());
    participant.tick();
    index.reap();
    assert_eq!(budget.used(), empty);
}
