//! Tests that the cleaner checks a dead segment again before it frees it, because the usage table
//! may be out of date.

use super::*;
use crate::lane::options::LaneOptions;
use crate::{Expiry, Outcome, Store};
use larder_log::Buffers;
use std::task::Waker;

/// The usage table says that a segment is dead. Then a record is revived, as by an undo. The
/// cleaner must not free the segment until that record is dead again.
#[test]
fn a_refilled_segment_is_not_freed_as_dead() {
    let options = LaneOptions {
        position: 0,
        memory: 1 << 20,
        memory_of_all: 64 << 10,
        most_memory: 64 << 10,
        max_item_size: 1 << 20,
        when_full: WhenFull::Evict,
        hash_seed: 0,
    };
    let buffers: Arc<Buffers> = Arc::default();
    let lane = Lane::open(options, None, &buffers, 0, &mut |_| ()).expect("memory");
    let mut session = lane.session(Waker::noop().clone());
    session.tick(1);
    for value in [b"old", b"new"] {
        let stored = session.store(&session.key(b"key"), Store::set(value, 0, Expiry::NEVER));
        assert!(matches!(stored, Outcome::Ready(_)));
        lane.log.seal_all();
    }
    session.sleep();
    let dead = { lane.log.usage().dead(Among::All) };
    let (stream, number) = dead.expect("the old value's segment holds nothing");
    let bytes = lane.log.segment(number).filled() as usize;
    lane.log.segment(number).revive(bytes);
    let mut cleaner = Cleaner::new(&lane);
    assert_eq!(cleaner.free_dead(&lane, stream, number, lane.undo_count()), Step::Later);
    assert!(lane.log.sealed(stream).contains(&number));
    lane.log.segment(number).kill(bytes);
    lane.log.note_changed(number);
    assert_eq!(lane.log.usage().dead(Among::All), Some((stream, number)));
    assert_eq!(cleaner.free_dead(&lane, stream, number, lane.undo_count()), Step::Freed);
}
