//! Models the cleaner moving a live record while its key is overwritten or deleted. A reader that
//! takes no lock must not see the old value after the writer is done.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p larder-engine --release loom`

use super::*;
use crate::lane::model::{self, check_books, delete, fill_a_frame, get, session, set};
use larder_log::State;
use larder_log::sync::atomic::AtomicBool;
use larder_log::sync::model::{Outcomes, check, spawn};

const KEY: &[u8] = b"k";
const OLD: &[u8] = b"old value";
const NEW: &[u8] = b"new value";
/// Size of the record of `KEY` with either value, in bytes.
const SIZE: usize = 32;

/// What the writer does to the key while the cleaner moves its record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Write {
    Overwrite,
    Delete,
    /// Deletes the key, then sets it to `NEW`.
    DeleteAndSet,
}

fn clean_and_write(write: Write, switches: usize) {
    let outcomes = Arc::new(Outcomes::default());
    let noted = Arc::clone(&outcomes);
    check(switches, move || {
        let lane = model::lane(model::SMALL);
        let (mut writer, mut reader) = (session(&lane), session(&lane));
        writer.tick(1);
        // Half of the segment is dead. `Fate::Keep` moves the live record, although it was never
        // read.
        set(&writer, KEY, b"dead data");
        set(&writer, KEY, OLD);
        writer.sleep();
        lane.log.seal_all();
        let number = lane.log.sealed(Stream::Hot)[0];
        let mut cleaner = Cleaner::new(&lane);
        let published = Arc::new(AtomicBool::new(false));
        loom::explore();
        let writing = {
            let published = Arc::clone(&published);
            spawn(move || {
                writer.tick(1);
                if write != Write::Overwrite {
                    assert!(delete(&writer, KEY));
                }
                if write != Write::Delete {
                    set(&writer, KEY, NEW);
                }
                published.store(true, Ordering::Release);
                writer.sleep();
                writer
            })
        };
        let reading = spawn(move || {
            reader.tick(1);
            let late = published.load(Ordering::Acquire);
            let seen = get(&reader, KEY).map(|value| {
                assert!(value == OLD || value == NEW, "{value:?}");
                value == NEW
            });
            reader.sleep();
            (reader, late, seen)
        });
        let step = cleaner.clean(&lane, Stream::Hot, number, Fate::Keep);
        lane.log.reap();
        let reused = step == Step::Freed && lane.log.quarantined() == 0;
        fill_a_frame(&lane, [SIZE, SIZE]);
        let mut writer = writing.join().unwrap();
        let (reader, late, seen) = reading.join().unwrap();
        let last = if write == Write::Delete { None } else { Some(true) };
        assert!(!late || seen == last, "the old value came back");
        assert!(write != Write::Overwrite || seen.is_some(), "it was there all the time");
        assert!(write != Write::Delete || seen != Some(true));
        if lane.log.segment(number).state() == State::Quarantine {
            assert_eq!(lane.log.live(number), 0, "all in it was moved or superseded");
        }
        noted.note((seen, reused));
        writer.tick(1);
        assert_eq!(get(&writer, KEY), last.map(|_| NEW));
        check_books(&lane);
        drop((writer, reader));
        check_books(&lane);
    });
    let seen = match write {
        Write::Overwrite => &[Some(false), Some(true)][..],
        Write::Delete => &[None, Some(false)],
        Write::DeleteAndSet => &[None, Some(false), Some(true)],
    };
    let all: Vec<_> = seen.iter().flat_map(|&seen| [(seen, false), (seen, true)]).collect();
    assert_eq!(outcomes.all(), all, "whether the new value was seen, and the frame used again");
}

#[test]
fn loom_an_item_that_moves_is_overwritten_once() {
    clean_and_write(Write::Overwrite, 2);
}

#[test]
fn loom_an_item_that_moves_is_deleted_once() {
    clean_and_write(Write::Delete, 2);
}

#[test]
fn loom_an_item_that_moves_is_deleted_and_set_again() {
    clean_and_write(Write::DeleteAndSet, 1);
}

/// A writer supersedes the last live record of a segment, under the lock of its stripe. The cleaner
/// frees the segment as soon as the segment counts as dead. It takes no lock of the index and does
/// not access it. A reader must find the old or the new value.
#[test]
fn loom_a_dead_segment_is_freed_behind_its_last_slot() {
    let outcomes = Arc::new(Outcomes::default());
    let noted = Arc::clone(&outcomes);
    check(2, move || {
        let lane = model::lane(model::SMALL);
        let (mut writer, mut reader) = (session(&lane), session(&lane));
        writer.tick(1);
        set(&writer, KEY, OLD);
        writer.sleep();
        lane.log.seal_all();
        let number = lane.log.sealed(Stream::Hot)[0];
        let mut cleaner = Cleaner::new(&lane);
        loom::explore();
        let writing = spawn(move || {
            writer.tick(1);
            set(&writer, KEY, NEW);
            writer.sleep();
            writer
        });
        let reading = spawn(move || {
            reader.tick(1);
            let seen = get(&reader, KEY).expect("it was there all the time");
            assert!(seen == OLD || seen == NEW, "{seen:?}");
            let new = seen == NEW;
            reader.sleep();
            (reader, new)
        });
        let found = { lane.log.usage().dead(Among::All) };
        let dead = found == Some((Stream::Hot, number));
        if dead {
            assert_eq!(cleaner.free_dead(&lane, Stream::Hot, number, 0), Step::Freed);
        }
        lane.log.reap();
        let reused = dead && lane.log.quarantined() == 0;
        fill_a_frame(&lane, [SIZE, SIZE]);
        let writer = writing.join().unwrap();
        let (reader, new) = reading.join().unwrap();
        noted.note((dead, reused, new));
        check_books(&lane);
        drop((writer, reader));
        check_books(&lane);
    });
    let freed =
        [(true, false, false), (true, false, true), (true, true, false), (true, true, true)];
    let all = [&[(false, false, false), (false, false, true)][..], &freed].concat();
    assert_eq!(outcomes.all(), all, "whether it was freed, used again, and the new value seen");
}
