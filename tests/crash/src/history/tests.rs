//! Most tests plant a fault into a history, and check that the fault is found. They also check that
//! the same history without the fault is accepted.

use super::*;
use crate::model::Item;
use crate::operation::{Store, chunk, store};
use crate::value::Content;

const NOW: When = When { from: 1000, to: 1000 };
/// A cutoff that allows no loss: every acknowledged write must be there.
const ALL: u64 = u64::MAX;

fn key() -> Key {
    Key { writer: 1, index: 2 }
}

fn set(seed: u64) -> Operation {
    store(Store::Set, chunk(seed, 20))
}

fn seen(content: &Content, cas: u64) -> Seen {
    Seen { print: content.print(), flags: 0, ttl: None, cas }
}

fn value(seed: u64) -> Seen {
    seen(&chunk(seed, 20), seed)
}

/// Returns a history in which values 1, 2, 3 … were stored, and acknowledged at 1, 2, 3 … seconds.
fn stored(values: u64) -> History {
    stored_in(History::new(key(), false), values)
}

fn stored_in(mut history: History, values: u64) -> History {
    for seed in 1..=values {
        history.answered(&set(seed), &Reply::Stored(None), NOW, seed * 1_000_000).unwrap();
    }
    history
}

fn fault(found: Result<Taken, Violation>) -> Fault {
    found.expect_err("a fault was planted").fault
}

#[test]
fn the_last_acknowledged_value_is_right_and_nothing_else_is() {
    let check = |seen: Option<Seen>| stored(3).recovered(seen.as_ref(), NOW, ALL, 9);
    assert_eq!(check(Some(value(3))).unwrap(), Taken::default());
    assert_eq!(fault(check(Some(value(2)))), Fault::RolledBack);
    assert_eq!(fault(check(None)), Fault::Lost);
    assert_eq!(fault(check(Some(value(7)))), Fault::Foreign);
    let torn = Seen { flags: 1, ..value(3) };
    assert_eq!(fault(check(Some(torn))), Fault::Foreign);
}

#[test]
fn requests_in_flight_may_be_there_or_not_in_their_order() {
    let history = || {
        let mut history = stored(1);
        history.executed(&set(2), NOW, false);
        history.executed(&Operation::Delete { meta: false }, NOW, false);
        history.executed(&set(3), NOW, false);
        history
    };
    for (seen, steps) in [(Some(value(1)), 3), (Some(value(2)), 2), (None, 1), (Some(value(3)), 0)]
    {
        let taken = history().recovered(seen.as_ref(), NOW, ALL, 9).unwrap();
        assert_eq!(taken, Taken { steps, told: 0 });
    }
    let mut history = history();
    history.recovered(Some(&value(2)), NOW, ALL, 9).unwrap();
    // The value that the crash took back must not return, and the value that was found must stay.
    assert_eq!(fault(history.clone().recovered(Some(&value(3)), NOW, ALL, 9)), Fault::Foreign);
    assert_eq!(fault(history.clone().recovered(Some(&value(1)), NOW, ALL, 9)), Fault::RolledBack);
    history.recovered(Some(&value(2)), NOW, ALL, 9).unwrap();
}

#[test]
fn a_deleted_key_stays_deleted() {
    let mut history = stored(2);
    let delete = Operation::Delete { meta: true };
    history.answered(&delete, &Reply::Deleted, NOW, 3).unwrap();
    assert_eq!(fault(history.clone().recovered(Some(&value(2)), NOW, ALL, 9)), Fault::Resurrected);
    history.recovered(None, NOW, ALL, 9).unwrap();
    history.answered(&delete, &Reply::NotFound, NOW, 10).unwrap();
}

#[test]
fn an_expired_item_does_not_uncover_an_older_one() {
    let mut history = stored(1);
    let Operation::Store { how, content, flags, quiet, meta, .. } = set(2) else { unreachable!() };
    let ending = Operation::Store { how, content, flags, quiet, meta, expires: 1005 };
    history.answered(&ending, &Reply::Stored(None), NOW, 2).unwrap();
    let later = When { from: 1010, to: 1010 };
    assert_eq!(fault(history.clone().recovered(Some(&value(1)), later, ALL, 9)), Fault::RolledBack);
    assert_eq!(fault(history.clone().recovered(None, NOW, ALL, 9)), Fault::Lost);
    history.answered(&Operation::Get, &Reply::Miss, later, 5).unwrap();
    let read = Seen { ttl: Some(5), ..value(2) };
    history.read(Some(&read), 3, 4, NOW).unwrap();
    history.recovered(None, later, ALL, 9).unwrap();
}

#[test]
fn counters_do_not_fall_below_a_value_that_a_reader_saw() {
    let number = |number| seen(&Content::Number(number), number);
    let count = Operation::Count { by: 1, initial: Some(1) };
    let history = || {
        let mut history = History::new(key(), false);
        history.answered(&count, &Reply::Number(1, None), NOW, 1).unwrap();
        history.executed(&count, NOW, false);
        history.executed(&count, NOW, false);
        history
    };
    history().recovered(Some(&number(1)), NOW, ALL, 9).unwrap();
    let mut read = history();
    read.read(Some(&number(2)), 5, 6, NOW).unwrap();
    assert_eq!(fault(read.clone().recovered(Some(&number(1)), NOW, ALL, 9)), Fault::RolledBack);
    read.recovered(Some(&number(3)), NOW, ALL, 9).unwrap();
    assert_eq!(read.state().len(), 1);
}

#[test]
fn readers_may_not_see_less_than_was_acknowledged_before_they_asked() {
    let mut history = stored(2);
    history.read(Some(&value(1)), 1_500_000, 2_500_000, NOW).unwrap();
    let stale = history.read(Some(&value(1)), 2_500_000, 2_600_000, NOW);
    assert_eq!(stale.unwrap_err().fault, Fault::Stale);
    let foreign = history.read(Some(&value(8)), 2_500_000, 2_600_000, NOW);
    assert_eq!(foreign.unwrap_err().fault, Fault::Foreign);
    history.read(Some(&value(2)), 2_500_000, 2_600_000, NOW).unwrap();
}

#[test]
fn an_asynchronous_store_may_lose_writes_after_the_cutoff() {
    let history = stored(5);
    let cutoff = 3_000_000;
    let taken = history.clone().recovered(Some(&value(3)), NOW, cutoff, 9).unwrap();
    assert_eq!(taken, Taken { steps: 2, told: 2 });
    assert_eq!(
        fault(history.clone().recovered(Some(&value(2)), NOW, cutoff, 9)),
        Fault::RolledBack
    );
    assert_eq!(fault(history.clone().recovered(None, NOW, cutoff, 9)), Fault::Lost);
}

#[test]
fn a_write_that_was_answered_with_an_error_must_not_be_there() {
    let mut history = stored(1);
    history.answered(&set(2), &Reply::Failed("store failed".into()), NOW, 3).unwrap();
    let read = history.clone().read(Some(&value(2)), 4, 5, NOW);
    assert_eq!(read.unwrap_err().fault, Fault::Undone);
    assert_eq!(fault(history.clone().recovered(Some(&value(2)), NOW, ALL, 9)), Fault::Undone);
    history.read(Some(&value(1)), 4, 5, NOW).unwrap();
    history.recovered(Some(&value(1)), NOW, ALL, 9).unwrap();
}

#[test]
fn answers_that_contradict_the_history_are_objected_to() {
    let mut history = stored(1);
    let get = |seen| Reply::Item(seen);
    let wrong = history.answered(&Operation::Get, &get(value(9)), NOW, 3).unwrap_err();
    assert_eq!(wrong.fault, Fault::Contradiction);
    history.answered(&Operation::Get, &get(value(1)), NOW, 3).unwrap();
    // The get has revealed the cas id, so a store with another cas id must be refused.
    let stale = store(Store::Cas(77), chunk(5, 5));
    let wrong = history.answered(&stale, &Reply::Stored(None), NOW, 4).unwrap_err();
    assert_eq!(wrong.fault, Fault::Contradiction);
    history.answered(&stale, &Reply::Exists, NOW, 4).unwrap();
    let item = Item { cas: Some(1), ..Item::new(chunk(1, 20), 0, 0) };
    assert_eq!(history.state(), [Some(item)]);
}

#[test]
fn a_noreply_write_counts_as_soon_as_a_later_answer_shows_it() {
    let mut history = stored(1);
    history.executed(&set(2), NOW, false);
    history.clone().recovered(Some(&value(1)), NOW, ALL, 9).unwrap();
    history.answered(&Operation::Get, &Reply::Item(value(2)), NOW, 3).unwrap();
    assert_eq!(fault(history.recovered(Some(&value(1)), NOW, ALL, 9)), Fault::RolledBack);
}

#[test]
fn a_touch_may_change_the_cas_id_and_readers_may_have_seen_the_old_one() {
    let mut history = stored(1);
    let touch = Operation::Touch { expires: 0, get: false };
    history.answered(&touch, &Reply::Touched, NOW, 3).unwrap();
    let after = Reply::Item(seen(&chunk(1, 20), 6));
    history.answered(&Operation::Get, &after, NOW, 4).unwrap();
    history.read(Some(&seen(&chunk(1, 20), 5)), 1, 2, NOW).unwrap();
    history.recovered(Some(&seen(&chunk(1, 20), 6)), NOW, ALL, 9).unwrap();
}

#[test]
fn two_states_that_look_alike_after_a_crash_both_stay_possible() {
    let until = |expires| {
        let Operation::Store { how, content, flags, quiet, meta, .. } = set(1) else {
            unreachable!()
        };
        Operation::Store { how, content, flags, quiet, meta, expires }
    };
    let mut history = History::new(key(), false);
    history.answered(&until(1013), &Reply::Stored(None), NOW, 3).unwrap();
    history.executed(&Operation::Touch { expires: 1011, get: false }, NOW, false);
    let read = |ttl| Seen { ttl: Some(ttl), ..value(1) };
    history.recovered(Some(&read(12)), NOW, ALL, 9).unwrap();
    history.recovered(Some(&read(14)), NOW, ALL, 9).unwrap();
    assert_eq!(fault(history.recovered(Some(&read(20)), NOW, ALL, 9)), Fault::Foreign);
}

#[test]
fn an_evicted_value_may_come_back_with_a_crash_but_no_older_value_does() {
    let mut history = stored_in(History::new(key(), true), 2);
    assert_eq!(fault(history.clone().recovered(Some(&value(1)), NOW, ALL, 9)), Fault::RolledBack);
    history.recovered(None, NOW, ALL, 9).unwrap();
    assert_eq!(fault(history.clone().recovered(Some(&value(1)), NOW, ALL, 9)), Fault::RolledBack);
    history.recovered(Some(&value(2)), NOW, ALL, 9).unwrap();
    history.answered(&Operation::Get, &Reply::Miss, NOW, 10).unwrap();
    // A reader may have seen the value before the eviction. After the miss, no answer may show the
    // value unless a crash comes first.
    history.read(Some(&value(2)), 8, 9, NOW).unwrap();
    let found = history.clone().answered(&Operation::Get, &Reply::Item(value(2)), NOW, 11);
    assert_eq!(found.unwrap_err().fault, Fault::Contradiction);
    history.clone().recovered(Some(&value(2)), NOW, ALL, 12).unwrap();
    // The value must not return after a client was told of a deletion, or after another value was
    // stored.
    let mut deleted = history.clone();
    let delete = Operation::Delete { meta: false };
    deleted.answered(&delete, &Reply::NotFound, NOW, 11).unwrap();
    assert_eq!(fault(deleted.recovered(Some(&value(2)), NOW, ALL, 12)), Fault::Resurrected);
    let add = store(Store::Add, chunk(3, 20));
    history.answered(&add, &Reply::Stored(None), NOW, 11).unwrap();
    assert_eq!(fault(history.clone().recovered(Some(&value(2)), NOW, ALL, 12)), Fault::RolledBack);
    history.recovered(Some(&value(3)), NOW, ALL, 12).unwrap();
}

#[test]
fn an_evicted_counter_begins_again_and_never_goes_back() {
    let number = |number| seen(&Content::Number(number), number);
    let count = |initial| Operation::Count { by: 5, initial };
    let mut history = History::new(key(), true);
    history.answered(&count(Some(5)), &Reply::Number(5, None), NOW, 1).unwrap();
    history.answered(&count(None), &Reply::Number(10, None), NOW, 2).unwrap();
    let back = history.clone().answered(&count(None), &Reply::Number(5, None), NOW, 3);
    assert_eq!(back.unwrap_err().fault, Fault::Contradiction);
    history.answered(&count(None), &Reply::NotFound, NOW, 3).unwrap();
    history.answered(&count(Some(5)), &Reply::Number(5, None), NOW, 4).unwrap();
    assert_eq!(fault(history.clone().recovered(Some(&number(10)), NOW, ALL, 9)), Fault::RolledBack);
    history.recovered(Some(&number(5)), NOW, ALL, 9).unwrap();
}
