//! Shared parts of the loom models. A model opens a lane without threads and without a store, and
//! checks the lane's consistency at the end.

use crate::lane::session::LaneSession;
use crate::lane::{Lane, LaneOptions};
use crate::{Arith, Counted, Deleted, Expiry, Key, Outcome, Store, Stored, WhenFull};
use larder_log::record::write_filler;
use larder_log::{Buffers, Claim, SegmentNumber, State, Stream};
use std::collections::HashMap;
use std::sync::Arc;
use std::task::Waker;

/// Memory of a lane with segments of 64 KiB. Its sessions have no chunks and append every record at
/// the segment's end.
pub(crate) const SMALL: u64 = 1 << 20;
/// Memory of a lane with segments of 512 KiB. Its sessions have chunks.
pub(crate) const LARGE: u64 = 128 << 20;

/// Opens a lane with this memory.
pub(crate) fn lane(memory: u64) -> Arc<Lane> {
    // Uses as few frames and segments as possible, because loom keeps a history of each atomic.
    let options = LaneOptions {
        position: 0,
        memory,
        memory_of_all: 64 << 10,
        most_memory: 64 << 10,
        max_item_size: 1 << 20,
        when_full: WhenFull::Evict,
        hash_seed: 0,
    };
    let buffers: Arc<Buffers> = Arc::default();
    Lane::open(options, None, &buffers, 0, &mut |_| ()).expect("memory")
}

/// Opens a session that is asleep.
pub(crate) fn session(lane: &Arc<Lane>) -> LaneSession {
    let mut session = lane.session(Waker::noop().clone());
    session.sleep();
    session
}

/// Sets a key. The session must be awake.
pub(crate) fn set(session: &LaneSession, key: &[u8], value: &[u8]) {
    let stored = session.store(&session.key(key), Store::set(value, 0, Expiry::NEVER));
    assert!(matches!(stored, Outcome::Ready(Stored::Stored { .. })), "{stored:?}");
}

/// Adds 1 to a counter and returns the new value; `None` if there is no counter.
pub(crate) fn increment(session: &LaneSession, key: &[u8]) -> Option<u64> {
    match session.arith(&session.key(key), &Arith::add(1)) {
        Outcome::Ready(Counted::Value { value, .. }) => Some(value),
        Outcome::Ready(Counted::NotFound) => None,
        other => panic!("{other:?}"),
    }
}

/// Returns the value of a key.
pub(crate) fn get<'a>(session: &'a LaneSession, key: &[u8]) -> Option<&'a [u8]> {
    match session.get(&session.key(key)) {
        Outcome::Ready(item) => item.map(|item| item.value()),
        other => panic!("{other:?}"),
    }
}

/// Deletes a key. Returns true if the key had an item.
pub(crate) fn delete(session: &LaneSession, key: &[u8]) -> bool {
    match session.delete(&session.key(key), &Default::default()) {
        Outcome::Ready(deleted) => deleted == Deleted::Deleted,
        other => panic!("{other:?}"),
    }
}

/// Reserves space and writes fillers of these lengths there. If a segment was freed, they overwrite
/// its first records, because the new segment gets its frame.
pub(crate) fn fill_a_frame(lane: &Lane, lengths: [usize; 2]) {
    for bytes in lengths {
        let reserved = lane.log.reserve(Stream::Survivors, bytes, 1, Claim::Clean).expect("room");
        // SAFETY: the reservation is this thread's own, and `bytes` long.
        unsafe { write_filler(reserved.memory, bytes) };
        lane.log.segment(reserved.address.segment()).kill(bytes);
    }
}

/// Checks the lane once all threads are done:
/// - Every slot leads to a record of its own key, in an open or sealed segment.
/// - No key has two slots.
/// - The index's count of items is correct.
/// - The live bytes of each segment are those of the records that slots lead to.
pub(crate) fn check_books(lane: &Lane) {
    let mut keys = HashMap::new();
    let mut live: HashMap<SegmentNumber, usize> = HashMap::new();
    for stripe in 0..lane.index.stripe_count() {
        lane.index.visit_stripe(stripe, |slot| {
            let number = slot.address().segment();
            let state = lane.log.segment(number).state();
            assert!(matches!(state, State::Open | State::Sealed), "{state:?}");
            // SAFETY: no thread frees segments any more.
            let record = unsafe { lane.log.record(slot.address()) }.expect("no store, no absence");
            let key = Key::new(record.key(), lane.options.hash_seed);
            assert_eq!((lane.index.stripe_of(&key), key.tag()), (stripe, slot.tag()));
            assert_eq!(keys.insert(record.key().to_vec(), slot), None, "a key has two slots");
            *live.entry(number).or_default() += record.size();
        });
    }
    assert_eq!(lane.index.items(), keys.len() as u64);
    for number in lane.log.numbers() {
        let known = live.get(&number).copied().unwrap_or(0);
        match lane.log.segment(number).state() {
            State::Open | State::Sealed => assert_eq!(lane.log.live(number) as usize, known),
            _ => assert_eq!(known, 0),
        }
    }
}
