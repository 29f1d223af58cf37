//! Models of other threads' work while a commit is being closed. If a thread then opens a segment,
//! the segment's header must name the first commit that covers records of the segment, or an
//! earlier one. The segment's cover must be lower than that first commit. If a thread then changes
//! a record in place, it must do so before the commit covers the record, or not at all.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p larder-log --release loom`

use super::*;
use crate::Address;
use crate::append::{Claim, JUMBO_HEADROOM};
use crate::log::Log;
use crate::memory::mapping::{Mapping, PAGE};
use crate::model::{SEGMENT, append, append_item, append_value, durable_log};
use crate::record::{Fields, Kind, Layout, write_head};
use crate::sync::model::{Outcomes, check, spawn};
use std::sync::Arc;

/// Opens a segment while another thread closes a commit. `open` returns the address of a record in
/// that segment. The segment must name the first commit that covers its records, or an earlier one.
/// Its cover must be lower than that commit.
fn open_and_close(prepare: fn(&Log), open: fn(&Log) -> Address) {
    let outcomes = Arc::new(Outcomes::default());
    let noted = Arc::clone(&outcomes);
    check(3, move || {
        let (log, epochs) = durable_log();
        prepare(&log);
        let writer = epochs.join();
        loom::explore();
        let thread = {
            let log = Arc::clone(&log);
            spawn(move || {
                let _appending = writer.appending();
                open(&log)
            })
        };
        let durable = log.durable().unwrap();
        let closed = durable.close_commit(&mut Committer::default());
        let address = thread.join().unwrap();
        let covered = closed.segments().any(|number| number == address.segment());
        let first = if covered { closed.number } else { closed.number + 1 };
        let entry = durable.store.entry(address.segment());
        let opened = entry.opened.load(Ordering::Relaxed);
        assert!(opened <= first, "commit {first} is in it, and it says {opened} is its first");
        assert!(entry.cover.load(Ordering::Relaxed) < first);
        noted.note((covered, first - opened));
    });
    let all = outcomes.all();
    assert!(all.contains(&(true, 0)) && all.contains(&(false, 0)), "{all:?}");
}

/// The open segment is full, so the next record opens another segment.
#[test]
fn loom_a_segment_that_is_opened_knows_its_first_commit() {
    let fill = |log: &Log| {
        append_value(log, Stream::Hot, b'a', SEGMENT as usize / 2 - 64);
        append_value(log, Stream::Hot, b'b', SEGMENT as usize / 2 - 200);
        assert!(log.segment(1).filled() as usize + 250 > SEGMENT as usize);
    };
    open_and_close(fill, |log| {
        let address = append(log, Stream::Hot, b'c');
        assert_ne!(address.segment(), 1);
        address
    });
}

#[test]
fn loom_a_large_value_knows_its_commit() {
    open_and_close(
        |_| (),
        |log| {
            let fields = Fields { seq: 1, ..Fields::default() };
            let layout = Layout::of(&fields, 1, SEGMENT as usize);
            let claim = log.claim_jumbo(layout.size(), Claim::Write).expect("there is room");
            let mapping = Mapping::new(layout.size() + 2 * PAGE).expect("memory");
            let record = mapping.base().wrapping_add(JUMBO_HEADROOM);
            // SAFETY: the mapping is this thread's own and longer than the record.
            unsafe { write_head(record, &layout, &fields, b"j") };
            log.adopt_jumbo(claim, mapping, JUMBO_HEADROOM, layout.value, 1, |_| ())
        },
    );
}

/// Lets a thread change a counter in place while `close` makes a commit or an early write cover the
/// counter. After `close`, the committer must see the new value if the thread made the change, and
/// otherwise the old value.
fn change_and_close(close: fn(DurableLog<'_>, &mut Committer)) {
    let outcomes = Arc::new(Outcomes::default());
    let noted = Arc::clone(&outcomes);
    check(3, move || {
        let (log, epochs) = durable_log();
        let fields = Fields { kind: Kind::Counter, seq: 1, ..Fields::default() };
        let address = append_item(&log, Stream::Hot, &fields, b'1', 1);
        let writer = epochs.join();
        loom::explore();
        let thread = {
            let log = Arc::clone(&log);
            spawn(move || {
                let _appending = writer.appending_seen();
                // SAFETY: the record is not durable, so its frame stays.
                let record = unsafe { log.record(address) }.expect("a frame");
                let changes = log.is_changeable(address, &record);
                if changes {
                    let value = (&b"2"[..], &[][..]);
                    // SAFETY: no other thread changes the record.
                    unsafe { log.change_in_place(address, &record, 2, value, 0) };
                }
                changes
            })
        };
        close(log.durable().unwrap(), &mut Committer::default());
        // SAFETY: as above.
        let record = unsafe { log.record(address) }.expect("a frame");
        let written = (record.seq(), record.value()[0]);
        let changed = thread.join().unwrap();
        assert_eq!(written, if changed { (2, b'2') } else { (1, b'1') });
        noted.note(changed);
    });
    assert_eq!(outcomes.all(), [false, true]);
}

#[test]
fn loom_a_commit_covers_a_counter_before_or_after_a_change() {
    change_and_close(|log, committer| drop(log.close_commit(committer)));
}

#[test]
fn loom_an_early_write_covers_a_counter_before_or_after_a_change() {
    change_and_close(|log, committer| {
        assert!(matches!(log.write_early(committer), Ok(Some(true))));
    });
}
