//! The possible states of a key, and memcached's rules for one key: what each request may answer,
//! and which states it may leave.
//!
//! A state is not always known exactly. Around the second in which an item expires, an answer with
//! the item and one without it are both correct. So every rule returns a list of possible states.
//! When the reply is known, those that contradict it are dropped. A server that evicts may evict an
//! item between any two requests: see [`evictable`].

use crate::operation::{Operation, Store};
use crate::reply::{Reply, Seen};
use crate::value::{Content, Print};

/// Number of seconds before and after an item's expiry in which the item may be there or not. The
/// server's clock and the protocol both count whole seconds.
const SLACK: u64 = 2;

/// Length in bytes of a value above which the server may refuse an append as too large. The exact
/// limit depends on the length of the key.
const NEARLY_FULL: u32 = (1 << 20) - 1024;

/// An item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) content: Content,
    pub(crate) print: Print,
    pub(crate) flags: u32,
    /// Unix seconds at which the item expires; 0 is never.
    pub(crate) expires: u64,
    /// The cas id; `None` until an answer has revealed it.
    pub(crate) cas: Option<u64>,
    /// True if the item was evicted. A get no longer finds it. But a crash may bring the item back,
    /// because the eviction becomes durable only later. A write of the key after the eviction
    /// prevents that.
    pub(crate) evicted: bool,
}

impl Item {
    pub(crate) fn new(content: Content, flags: u32, expires: u64) -> Item {
        let print = content.print();
        Item { content, print, flags, expires, cas: None, evicted: false }
    }

    /// Returns true if a read of this item, at some moment in `when`, can have returned `seen`.
    pub(crate) fn is(&self, seen: &Seen, when: When) -> bool {
        let ttl = match (seen.ttl, self.expires) {
            (None, expires) => expires == 0,
            (Some(_), 0) => false,
            (Some(ttl), expires) => {
                when.from + ttl <= expires + SLACK && expires <= when.to + ttl + SLACK
            }
        };
        let cas = self.cas.is_none_or(|cas| cas == seen.cas);
        ttl && cas && self.print == seen.print && self.flags == seen.flags
    }

    fn known(&self, cas: u64) -> Item {
        Item { cas: Some(cas), ..self.clone() }
    }
}

/// The state of a key: an item, or `None` if there is none.
pub(crate) type State = Option<Item>;

/// Returns the item that a get would find.
fn live(state: &State) -> Option<&Item> {
    state.as_ref().filter(|item| !item.evicted)
}

/// Returns `states` and, for each item in them, the state after an eviction of that item.
pub(crate) fn evictable(states: &[State]) -> Vec<State> {
    let mut all = states.to_vec();
    for item in states.iter().filter_map(live) {
        let evicted = Some(Item { evicted: true, ..item.clone() });
        if !all.contains(&evicted) {
            all.push(evicted);
        }
    }
    all
}

/// The range of Unix seconds, both ends included, in which an event happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct When {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// Returns what `state` may be at some moment in `when`: itself, or `None` if its item may have
/// expired.
pub(crate) fn by_then(state: &State, when: When) -> Vec<State> {
    match state {
        Some(item) if item.expires != 0 && item.expires + SLACK < when.from => vec![None],
        Some(item) if item.expires != 0 && item.expires <= when.to + SLACK => {
            vec![state.clone(), None]
        }
        _ => vec![state.clone()],
    }
}

/// Returns true if a read of `state` during `when` can have returned `seen`. A read may return an
/// evicted item before its eviction, or after a crash that undid the eviction.
pub(crate) fn fits(state: &State, seen: Option<&Seen>, when: When) -> bool {
    match (state, seen) {
        (None, seen) => seen.is_none(),
        (Some(item), None) => {
            item.evicted || (item.expires != 0 && item.expires <= when.to + SLACK)
        }
        (Some(item), Some(seen)) => {
            (item.expires == 0 || item.expires + SLACK >= when.from) && item.is(seen, when)
        }
    }
}

/// Returns the possible states after `operation` was executed on `state`, regardless of the answer.
pub(crate) fn after(state: &State, operation: &Operation, when: When) -> Vec<State> {
    by_then(state, when).iter().flat_map(|state| execute(state, operation)).collect()
}

/// Returns the possible states after `operation` was executed on `state` and answered with `reply`.
/// The list is empty if that reply is impossible.
pub(crate) fn after_reply(
    state: &State,
    operation: &Operation,
    reply: &Reply,
    when: When,
) -> Vec<State> {
    by_then(state, when)
        .iter()
        .flat_map(|before| {
            execute(before, operation)
                .into_iter()
                .filter_map(|after| explained(before, after, operation, reply, when))
        })
        .collect()
}

/// Returns the possible states after `operation`. There is one rule for each operation.
fn execute(state: &State, operation: &Operation) -> Vec<State> {
    match (operation, live(state)) {
        (Operation::Get, _) | (Operation::Touch { .. }, None) => vec![state.clone()],
        (Operation::Delete { .. }, _) => vec![None],
        (Operation::Touch { expires, .. }, Some(item)) => {
            // A touch may give the item a new cas id, so the id is unknown until a reply shows it.
            vec![Some(Item { expires: *expires, cas: None, ..item.clone() })]
        }
        (Operation::Count { initial: None, .. }, None) => vec![state.clone()],
        (Operation::Count { initial: Some(initial), .. }, None) => {
            vec![Some(Item::new(Content::Number(*initial), 0, 0))]
        }
        (Operation::Count { by, .. }, Some(item)) => match item.content {
            Content::Number(number) => {
                let content = Content::Number(number.wrapping_add(*by));
                vec![Some(Item::new(content, item.flags, item.expires))]
            }
            Content::Chunks(_) => vec![state.clone()],
        },
        (Operation::Store { how, content, flags, expires, .. }, found) => {
            let new = || Some(Item::new(content.clone(), *flags, *expires));
            match (how, found) {
                (Store::Set, _) | (Store::Add, None) | (Store::Replace, Some(_)) => vec![new()],
                (Store::Add, Some(_)) | (Store::Replace | Store::Append | Store::Cas(_), None) => {
                    vec![state.clone()]
                }
                (Store::Append, Some(item)) => {
                    let longer = appended(item, content);
                    let refused = (longer.print.length > NEARLY_FULL).then(|| state.clone());
                    [Some(Some(longer)), refused].into_iter().flatten().collect()
                }
                (Store::Cas(given), Some(item)) => match item.cas {
                    Some(cas) if cas == *given => vec![new()],
                    Some(_) => vec![state.clone()],
                    None => vec![new(), state.clone()],
                },
            }
        }
    }
}

fn appended(item: &Item, content: &Content) -> Item {
    let chunks = match (&item.content, content) {
        (Content::Chunks(old), Content::Chunks(new)) => [old.clone(), new.clone()].concat(),
        // The test's clients append chunks only to chunks.
        _ => Vec::new(),
    };
    Item::new(Content::Chunks(chunks), item.flags, item.expires)
}

/// Returns `after` with the cas id that `reply` shows. Returns `None` if the operation cannot have
/// changed `before` to `after` and been answered with `reply`.
fn explained(
    before: &State,
    after: State,
    operation: &Operation,
    reply: &Reply,
    when: When,
) -> Option<State> {
    let changed = || *before != after;
    let was_there = live(before).is_some();
    let is_there = live(&after).is_some();
    match (operation, reply) {
        (Operation::Get, Reply::Miss) => (!is_there).then_some(after),
        (Operation::Get, Reply::Item(seen)) => {
            let item = after.filter(|item| is_there && item.is(seen, when))?;
            Some(Some(item.known(seen.cas)))
        }
        (Operation::Touch { get: true, .. }, Reply::Miss)
        | (Operation::Touch { get: false, .. }, Reply::NotFound)
        | (Operation::Delete { .. }, Reply::NotFound)
        | (Operation::Count { .. }, Reply::NotFound) => (!was_there && !is_there).then_some(after),
        (Operation::Touch { get: true, .. }, Reply::Item(seen)) => {
            let same = |item: &Item| item.print == seen.print && item.flags == seen.flags;
            live(&after).is_some_and(same).then_some(after)
        }
        (Operation::Touch { get: false, .. }, Reply::Touched)
        | (Operation::Delete { .. }, Reply::Deleted) => was_there.then_some(after),
        (Operation::Count { .. }, Reply::Number(number, cas)) => {
            let counted = |item: &Item| is_there && item.content == Content::Number(*number);
            let item = after.filter(counted)?;
            Some(Some(Item { cas: *cas, ..item }))
        }
        (Operation::Store { how, .. }, Reply::Stored(cas)) => {
            let stored = match how {
                Store::Set => true,
                Store::Add => !was_there,
                Store::Replace => was_there,
                Store::Append => changed(),
                Store::Cas(_) => was_there && changed(),
            };
            let item = after.filter(|_| stored)?;
            Some(Some(Item { cas: *cas, ..item }))
        }
        (Operation::Store { how, .. }, reply) => {
            let refused = match (how, reply) {
                (Store::Add, Reply::NotStored) => was_there,
                (Store::Replace, Reply::NotStored | Reply::NotFound) => !was_there,
                (Store::Append, Reply::NotStored | Reply::NotFound) => !changed(),
                (Store::Cas(_), Reply::Exists) => was_there && !changed(),
                (Store::Cas(_), Reply::NotFound | Reply::NotStored) => !was_there,
                _ => false,
            };
            refused.then_some(after)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{chunk, store};

    const NOW: When = When { from: 1000, to: 1000 };

    fn item(content: Content) -> State {
        Some(Item::new(content, 0, 0))
    }

    #[test]
    fn a_reply_that_contradicts_the_state_leaves_nothing() {
        let (value, other) = (item(chunk(1, 10)), item(chunk(2, 10)));
        let set = store(Store::Set, chunk(2, 10));
        assert_eq!(after_reply(&value, &set, &Reply::Stored(None), NOW), vec![other]);
        assert!(after_reply(&value, &set, &Reply::NotStored, NOW).is_empty());
        let add = store(Store::Add, chunk(2, 10));
        assert!(after_reply(&value, &add, &Reply::Stored(None), NOW).is_empty());
        assert_eq!(after_reply(&value, &add, &Reply::NotStored, NOW), vec![value.clone()]);
        assert!(after_reply(&value, &Operation::Get, &Reply::Miss, NOW).is_empty());
        let delete = Operation::Delete { meta: false };
        assert!(after_reply(&None, &delete, &Reply::Deleted, NOW).is_empty());
        assert_eq!(after_reply(&value, &delete, &Reply::Deleted, NOW), vec![None]);
        let count = Operation::Count { by: 2, initial: None };
        let number = item(Content::Number(5));
        assert!(after_reply(&number, &count, &Reply::Number(6, None), NOW).is_empty());
        let seven = item(Content::Number(7));
        assert_eq!(after_reply(&number, &count, &Reply::Number(7, None), NOW), vec![seven]);
    }

    #[test]
    fn an_append_is_refused_only_without_an_item_or_without_room() {
        let refused = |length| {
            let append = store(Store::Append, chunk(2, 500));
            after_reply(&item(chunk(1, length)), &append, &Reply::NotStored, NOW)
        };
        assert!(refused(1000).is_empty());
        assert_eq!(refused((1 << 20) - 1100), vec![item(chunk(1, (1 << 20) - 1100))]);
        let append = store(Store::Append, chunk(2, 500));
        assert_eq!(after_reply(&None, &append, &Reply::NotStored, NOW), vec![None]);
    }

    #[test]
    fn a_cas_id_that_is_known_decides_and_an_unknown_one_does_not() {
        let with = |cas| Some(Item { cas, ..Item::new(chunk(1, 10), 0, 0) });
        let cas = |given| store(Store::Cas(given), chunk(2, 10));
        assert!(after_reply(&with(Some(5)), &cas(4), &Reply::Stored(None), NOW).is_empty());
        assert!(after_reply(&with(Some(5)), &cas(5), &Reply::Exists, NOW).is_empty());
        assert_eq!(after_reply(&with(None), &cas(5), &Reply::Exists, NOW).len(), 1);
        assert_eq!(after_reply(&with(None), &cas(5), &Reply::Stored(Some(6)), NOW).len(), 1);
        assert_eq!(after(&with(None), &cas(5), NOW).len(), 2);
    }

    #[test]
    fn around_its_expiry_an_item_may_be_there_or_not_and_later_it_is_gone() {
        let item = Some(Item::new(chunk(1, 10), 0, 1000));
        let states = |now| by_then(&item, When { from: now, to: now });
        assert_eq!(states(990), vec![item.clone()]);
        assert_eq!(states(1001), vec![item.clone(), None]);
        assert_eq!(states(1003), vec![None]);
        let seen = Seen { print: chunk(1, 10).print(), flags: 0, ttl: Some(10), cas: 1 };
        assert!(fits(&item, Some(&seen), When { from: 990, to: 990 }));
        assert!(!fits(&item, Some(&seen), When { from: 980, to: 980 }), "ttl shrank by itself");
        assert!(!fits(&item, Some(&Seen { ttl: None, ..seen }), When { from: 990, to: 990 }));
    }
}
