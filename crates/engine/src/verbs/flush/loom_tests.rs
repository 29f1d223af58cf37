//! Models of flush_all while a segment is sealed: by a writer that appends its last record, or by
//! the flush itself while a session has a chunk in the segment. Items written before the flush are
//! gone after it; items written after it stay.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p larder-engine --release loom`

use crate::lane::model::{self, check_books, fill_a_frame, get, session, set};
use larder_log::sync::atomic::{AtomicBool, Ordering};
use larder_log::sync::model::{Outcomes, check, spawn};
use std::collections::BTreeSet;
use std::sync::Arc;

const BEFORE: &[u8] = b"before";
const DURING: [&[u8]; 2] = [b"during", b"then"];
const AFTER: &[u8] = b"after";
const VALUE: &[u8] = b"a value of some length";
/// Bytes of the record with key `BEFORE` and value `VALUE`.
const SIZE: usize = 48;
/// Bytes that fill a small segment before `BEFORE` is written. The rest has room for that record
/// and one more, but not for a third.
const FILL: usize = (64 << 10) - 2 * SIZE - SIZE / 2;

/// One thread flushes, another writes twice. With [`model::SMALL`], sessions have no chunks: the
/// first record fills the open segment, and the second does not fit and seals it. With
/// [`model::LARGE`], both records go to the writer's chunk, so only the flush seals the segment.
fn flush_and_seal(memory: u64, switches: usize) {
    let outcomes = Arc::new(Outcomes::default());
    let noted = Arc::clone(&outcomes);
    check(switches, move || {
        let lane = model::lane(memory);
        let (mut writer, mut flusher) = (session(&lane), session(&lane));
        writer.tick(1);
        // The first record of a segment is in no chunk. With several records before it, `BEFORE` is
        // in the writer's chunk if sessions have chunks.
        let half = if memory == model::SMALL { FILL / 2 - 24 } else { 0 };
        set(&writer, b"fill0", &vec![0; half]);
        set(&writer, b"fill1", &vec![0; half]);
        set(&writer, BEFORE, VALUE);
        let room = lane.log.segment_size() - lane.log.segment(1).filled() as usize;
        // When the session sleeps, it reports the unused rest of its chunk as dead.
        writer.sleep();
        let has_chunk = lane.log.dead(1) > 0;
        assert!(has_chunk || (SIZE..2 * SIZE).contains(&room), "{room} bytes are left");
        assert_eq!(has_chunk, memory == model::LARGE);
        let flushed = Arc::new(AtomicBool::new(false));
        loom::explore();
        let writing = {
            let flushed = Arc::clone(&flushed);
            spawn(move || {
                writer.tick(1);
                let early = flushed.load(Ordering::Acquire);
                let found = get(&writer, BEFORE);
                assert!(found.is_none_or(|value| !early && value == VALUE));
                let mut after = [false; 2];
                for (key, after) in DURING.into_iter().zip(&mut after) {
                    *after = flushed.load(Ordering::Acquire);
                    set(&writer, key, VALUE);
                }
                writer.sleep();
                (writer, after)
            })
        };
        flusher.tick(1);
        assert!(matches!(flusher.flush_all(None), Ok(None)));
        flushed.store(true, Ordering::Release);
        set(&flusher, AFTER, VALUE);
        flusher.sleep();
        lane.log.reap();
        lane.index.reap();
        let reused = lane.log.quarantined() == 0;
        fill_a_frame(&lane, [SIZE, SIZE]);
        let (mut writer, after) = writing.join().unwrap();
        writer.tick(1);
        assert_eq!(get(&writer, BEFORE), None, "the flushed item is still there");
        assert_eq!(get(&writer, AFTER), Some(VALUE), "an item set after the flush is lost");
        let there = DURING.map(|key| get(&writer, key).is_some());
        for (after, there) in after.into_iter().zip(there) {
            assert!(there || !after, "an item set after the flush is lost");
        }
        assert!(there[1] || !there[0], "the flush was between them");
        noted.note((there, reused));
        check_books(&lane);
        drop((writer, flusher));
        check_books(&lane);
    });
    let there: BTreeSet<_> = outcomes.all().into_iter().map(|(there, _)| there).collect();
    assert_eq!(there, BTreeSet::from([[false, false], [false, true], [true, true]]));
    assert!(outcomes.all().iter().any(|&(_, reused)| reused), "frames were used again");
}

#[test]
fn loom_a_flush_meets_a_segment_that_is_full() {
    flush_and_seal(model::SMALL, 2);
}

#[test]
fn loom_a_flush_meets_a_chunk() {
    flush_and_seal(model::LARGE, 2);
}
