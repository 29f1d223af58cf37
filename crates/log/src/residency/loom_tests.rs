//! Models a thread that reads a record while another thread frees the record's memory: drops the
//! frame of a durable segment, or evicts a copy. The reader must see either the whole record or
//! that the record is not in memory.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p larder-log --release loom`

use super::*;
use crate::append::Stream;
use crate::commit::Committer;
use crate::model::{VALUE, append, durable_log};
use crate::record::{Fields, write_head};
use crate::sync::model::{Outcomes, check, spawn};
use crate::{Epochs, Kept, Participant, Queue, RecordId};
use std::sync::Arc;

/// A log over a device, in which one segment with one record is durable.
struct World {
    log: Arc<Log>,
    epochs: Arc<Epochs>,
    /// The record in the durable segment, and that segment's generation.
    id: RecordId,
}

impl World {
    fn new() -> World {
        let (log, epochs) = durable_log();
        let address = append(&log, Stream::Hot, b'a');
        log.seal_all();
        let mut committer = Committer::default();
        let durable = log.durable().unwrap();
        let closed = durable.close_commit(&mut committer);
        let written = durable.write_commit(&mut committer, &closed).unwrap();
        durable.settle_commit(&mut committer, &closed, written);
        let id = log.record_id(address);
        World { log, epochs, id }
    }

    /// Reads the record, from its frame or as a copy. The record must be whole and stay whole until
    /// the reader's next quiescent point. Returns true if it was found.
    fn read(log: &Log, id: RecordId, reader: &mut Participant) -> bool {
        reader.tick();
        // SAFETY: the reader is awake, the address was published before, and the record is not used
        // after the reader's next quiescent point.
        let found = unsafe { log.record(id.address).or_else(|| log.copies().get(id)) };
        if let Some(record) = &found {
            assert_eq!(record.key(), b"a");
            assert_eq!(record.value(), [b'a'; VALUE]);
        }
        reader.sleep();
        found.is_some()
    }
}

/// Returns a record outside the log, like those that `append` writes.
fn bytes_of_record(byte: u8) -> Vec<u64> {
    let fields = Fields { seq: u64::from(byte), ..Fields::default() };
    let layout = Layout::of(&fields, 1, VALUE);
    let mut words = vec![0u64; layout.size() / size_of::<u64>()];
    let at = words.as_mut_ptr().cast::<u8>();
    // SAFETY: the words are as long as the record.
    unsafe {
        write_head(at, &layout, &fields, &[byte]);
        at.add(layout.value_offset()).write_bytes(byte, VALUE);
    }
    words
}

fn record_in_segment_behind(id: RecordId, segments: u32) -> RecordId {
    let address = Address::new(id.address.segment() + segments, id.address.offset());
    RecordId { address, generation: 1 }
}

fn keep(log: &Log, id: RecordId, byte: u8) -> Kept {
    let words = bytes_of_record(byte);
    // SAFETY: the words are a whole record.
    let record = unsafe { Record::at(words.as_ptr().cast(), || 0) };
    log.copies().keep(id, &record, Queue::Small, 0)
}

/// Drops the segment's frame and, as soon as that is allowed, reuses it for another segment whose
/// first record has the same offset. A concurrent reader of the old record must find that record or
/// nothing.
fn drop_and_read(starts_asleep: bool) {
    let outcomes = Arc::new(Outcomes::default());
    let noted = Arc::clone(&outcomes);
    check(3, move || {
        let World { log, epochs, id } = World::new();
        let mut reader = epochs.join();
        if !starts_asleep {
            reader.tick();
        }
        loom::explore();
        let thread = {
            let log = Arc::clone(&log);
            spawn(move || {
                let first = World::read(&log, id, &mut reader);
                let second = World::read(&log, id, &mut reader);
                assert!(first || !second, "it came back");
                (reader, first)
            })
        };
        assert!(log.durable().unwrap().drop_frame(id.address.segment()));
        log.reap_frames();
        let reused = log.dropped_frames() == 0;
        let other = append(&log, Stream::Survivors, b'b');
        let (mut reader, found) = thread.join().unwrap();
        noted.note((found, reused));
        assert!(!World::read(&log, id, &mut reader), "its frame is gone");
        // SAFETY: no thread drops frames any more.
        let record = unsafe { log.record(other) }.expect("it was just written");
        assert_eq!(record.value(), [b'b'; VALUE]);
    });
    let all = [(false, false), (false, true), (true, false), (true, true)];
    assert_eq!(outcomes.all(), all, "whether the record was found, and its frame used again");
}

#[test]
fn loom_a_dropped_frame_waits_for_an_awake_reader() {
    drop_and_read(false);
}

#[test]
fn loom_a_dropped_frame_waits_for_a_waking_reader() {
    drop_and_read(true);
}

/// Drops the record's frame and makes the first copy, for which no table exists yet.
fn copy_first(log: &Log, id: RecordId) {
    assert!(log.durable().unwrap().drop_frame(id.address.segment()));
    log.reap_frames();
    assert_eq!(keep(log, id, b'a'), Kept::NeedsFrame);
    assert!(log.copies().take_want());
    assert_eq!(keep(log, id, b'a'), Kept::Yes);
}

/// Evicts a copy and, as soon as that is allowed, puts another record's copy into its frame. With
/// `is_wanted`, a copy whose read was counted moves to another frame instead. A concurrent reader
/// of the first record must find that record or nothing.
fn evict_and_read(is_wanted: bool) {
    let outcomes = Arc::new(Outcomes::default());
    let noted = Arc::clone(&outcomes);
    check(3, move || {
        let World { log, epochs, id } = World::new();
        copy_first(&log, id);
        let mut reader = epochs.join();
        loom::explore();
        let thread = {
            let log = Arc::clone(&log);
            spawn(move || {
                reader.tick();
                // SAFETY: the reader is awake.
                let counted = unsafe { log.copies().count_read(id) };
                let found = World::read(&log, id, &mut reader);
                assert!(is_wanted || counted || !found, "it came back");
                (reader, found)
            })
        };
        assert!(log.copies().evict(Queue::Small, |_, _| is_wanted, |_, _| ()));
        log.copies().reap();
        let reused = log.copies().retired_frames() == 0;
        let other = record_in_segment_behind(id, 1);
        assert_eq!(keep(&log, other, b'b'), Kept::Yes);
        let (mut reader, found) = thread.join().unwrap();
        let kept = World::read(&log, id, &mut reader);
        assert!(is_wanted || !kept);
        noted.note((found, kept, reused));
        assert_eq!(log.copies().count(), 1 + usize::from(kept));
        reader.tick();
        // SAFETY: the participant is awake.
        let copied = unsafe { log.copies().get(other) }.expect("it was just copied");
        assert_eq!(copied.value(), [b'b'; VALUE]);
    });
    // While a copy moves, no slot leads to it for a moment. A reader that looks for the copy at
    // that moment does not find it, although it finds the copy later.
    let all = [(false, false), (false, true), (true, false), (true, true)];
    let all =
        all.into_iter().filter(|&(found, kept)| if is_wanted { !found || kept } else { !kept });
    let all: Vec<_> =
        all.flat_map(|(found, kept)| [(found, kept, false), (found, kept, true)]).collect();
    assert_eq!(
        outcomes.all(),
        all,
        "whether it was found then and later, and its frame used again"
    );
}

#[test]
fn loom_an_evicted_copy_is_read_whole_or_not_at_all() {
    evict_and_read(false);
}

#[test]
fn loom_a_moving_copy_is_read_whole_or_not_at_all() {
    evict_and_read(true);
}

/// Replaces the table of copies by a larger one. The reader must find its copy in either table.
#[test]
fn loom_a_larger_table_of_copies_hides_none() {
    let outcomes = Arc::new(Outcomes::default());
    let noted = Arc::clone(&outcomes);
    check(3, move || {
        let World { log, epochs, id } = World::new();
        copy_first(&log, id);
        let other = |n| record_in_segment_behind(id, n);
        let crowded = (1..).find(|&n| keep(&log, other(n), b'b') != Kept::Yes);
        assert!(crowded.is_some());
        let mut reader = epochs.join();
        loom::explore();
        let thread = {
            let log = Arc::clone(&log);
            spawn(move || {
                assert!(World::read(&log, id, &mut reader));
                assert!(World::read(&log, id, &mut reader));
            })
        };
        assert!(log.copies().take_want());
        let before = log.budget.used();
        log.copies().reap();
        noted.note(log.budget.used() < before);
        thread.join().unwrap();
    });
    assert_eq!(outcomes.all(), [false, true], "whether the old table was given back at once");
}
