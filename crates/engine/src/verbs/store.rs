//! Writes of whole values: set, add, replace, append, prepend, cas and meta set.

use crate::index::Guard;
use crate::lane::session::LaneSession;
use crate::stats::bump;
use crate::verbs::version::{Body, Existing, NotWritten, Part};
use crate::{Key, Outcome, Store, StoreMode, Stored, Value};
use larder_log::record::Kind;
use larder_log::{Claim, Fields};

/// The relation of the existing item's cas id to the one that the client compares with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    NotAsked,
    Match,
    /// The client's cas id is lower than the item's, and the client allows that.
    Stale,
    Mismatch,
}

impl LaneSession {
    /// Writes a value.
    #[inline(always)]
    pub(crate) fn store(&self, key: &Key<'_>, store: Store<'_>) -> Outcome<Stored> {
        if store.value.len() > self.lane.max_value_len(key.bytes().len()) {
            bump(&self.counters.store_too_large, 1);
            return self.answer(Stored::TooLarge);
        }
        self.update(key, |guard| {
            let stored = match self.store_locked(guard, key, store) {
                // The appended or prepended bytes are not too large, but the whole value would be.
                Err(NotWritten::TooLarge) => Stored::NotStored,
                stored => stored?,
            };
            bump(&self.counters.cmd_set, 1);
            if matches!(stored, Stored::Stored { .. }) {
                bump(&self.counters.total_items, 1);
            }
            Ok(stored)
        })
    }

    #[inline(always)]
    fn store_locked<'a>(
        &'a self,
        guard: &Guard<'a>,
        key: &Key<'_>,
        store: Store<'_>,
    ) -> Result<Stored, NotWritten> {
        let extends = matches!(store.mode, StoreMode::Append | StoreMode::Prepend);
        let part = if extends { Part::Whole } else { Part::Head };
        let mut found = None;
        let existing = match self.existing(guard, key, part, &mut found) {
            Err(NotWritten::NeedsRead) if overwrites(&store) => {
                return self.put_unread(guard, key, store);
            }
            existing => existing?,
        };
        let live = existing.filter(|old| !old.gone);
        match (extends, live) {
            (true, Some(old)) => self.extend(guard, key, old, store),
            (true, None) => match store.vivify {
                Some(expiry) => {
                    let store = Store { expiry, compare: None, ..store };
                    self.put(guard, key, existing, None, store)
                }
                None => Ok(Stored::NotStored),
            },
            (false, live) => self.put(guard, key, existing, live, store),
        }
    }

    /// Performs set, add or replace, with or without a comparison.
    #[inline(always)]
    fn put<'a>(
        &'a self,
        guard: &Guard<'a>,
        key: &Key<'_>,
        existing: Option<&Existing<'a>>,
        live: Option<&Existing<'a>>,
        store: Store<'_>,
    ) -> Result<Stored, NotWritten> {
        let compare = if store.mode == StoreMode::Add { None } else { store.compare };
        let comparison = match (live, compare) {
            (Some(old), Some(wanted)) => compared(old, wanted, store.invalidate),
            (None, Some(_)) => {
                bump(&self.counters.cas_misses, 1);
                return Ok(Stored::NotFound);
            }
            (_, None) => Comparison::NotAsked,
        };
        match (store.mode, live) {
            (StoreMode::Add, Some(old)) => {
                if let Some((place, slot, record)) = self.find_record(key) {
                    debug_assert_eq!(slot.address(), old.place.slot().address());
                    self.count_read(place, slot, &record);
                }
                return Ok(Stored::NotStored);
            }
            (StoreMode::Replace, None) => return Ok(Stored::NotStored),
            _ => {}
        }
        let mut fields = fields_of(&store);
        match comparison {
            Comparison::Mismatch => {
                bump(&self.counters.cas_badval, 1);
                return Ok(Stored::Exists);
            }
            Comparison::Stale => {
                fields.stale = true;
                fields.expiry = live.map_or(0, |old| old.record.expiry());
            }
            Comparison::NotAsked | Comparison::Match => {}
        }
        let size = store.value.len();
        let body = body_of(store.value);
        // Borrows the item to read its cas id. The item was just stored field by field, and a copy
        // of it would stall the processor until all these stores are complete.
        let cas = match &self.write(guard, key, existing, Claim::Write, fields, body) {
            Ok(item) => item.cas(),
            Err(why) => return Err(*why),
        };
        if comparison != Comparison::NotAsked {
            bump(&self.counters.cas_hits, 1);
        }
        if store.cas.is_some() {
            self.lane.recache_winners.forget(key, cas);
        }
        if let (Comparison::Stale, Some(old)) = (comparison, live)
            && self.lane.recache_winners.claimed(key, old.record.cas())
        {
            self.lane.recache_winners.claim(key, cas);
        }
        Ok(Stored::Stored { cas, size })
    }

    /// Performs a plain set over a record that is not in memory, if the record need not be read.
    fn put_unread<'a>(
        &'a self,
        guard: &Guard<'a>,
        key: &Key<'_>,
        store: Store<'_>,
    ) -> Result<Stored, NotWritten> {
        let (size, forgets) = (store.value.len(), store.cas.is_some());
        let written = self.write_unread(guard, key, fields_of(&store), body_of(store.value));
        let item = written.ok_or(NotWritten::NeedsRead)?;
        bump(&self.counters.unread_sets, 1);
        if forgets {
            self.lane.recache_winners.forget(key, item.cas());
        }
        Ok(Stored::Stored { cas: item.cas(), size })
    }

    /// Appends or prepends to a live item. Flags and expiry stay. The item is no longer stale.
    fn extend<'a>(
        &'a self,
        guard: &Guard<'a>,
        key: &Key<'_>,
        old: &Existing<'a>,
        store: Store<'_>,
    ) -> Result<Stored, NotWritten> {
        if let Some(wanted) = store.compare
            && compared(old, wanted, false) == Comparison::Mismatch
        {
            return Ok(Stored::Exists);
        }
        let old_item = self.visible_locked(old.record);
        let kept = old_item.fields();
        let fields = Fields { kind: Kind::Item, cas: store.cas, stale: false, ..kept };
        let more: &[u8] = match store.value {
            Value::Bytes(bytes) => bytes,
            Value::Large(large) => large.bytes_mut(),
        };
        let size = old_item.value().len() + more.len();
        let body = match store.mode {
            StoreMode::Prepend => Body::Pieces(more, old_item.value()),
            _ => Body::Pieces(old_item.value(), more),
        };
        let item = self.write(guard, key, Some(old), Claim::Write, fields, body)?;
        Ok(Stored::Stored { cas: item.cas(), size })
    }
}

/// Returns true if the write needs nothing from the existing item: a plain set of a value that is
/// not large.
fn overwrites(store: &Store<'_>) -> bool {
    store.mode == StoreMode::Set
        && store.compare.is_none()
        && matches!(store.value, Value::Bytes(_))
}

fn fields_of(store: &Store<'_>) -> Fields {
    Fields { cas: store.cas, expiry: store.expiry.raw(), flags: store.flags, ..Fields::default() }
}

fn body_of(value: Value<'_>) -> Body<'_> {
    match value {
        Value::Bytes(bytes) => Body::Pieces(bytes, &[]),
        Value::Large(large) => Body::Large(large),
    }
}

/// Compares the live item's cas id with the wanted one.
fn compared(old: &Existing<'_>, wanted: u64, stale_allowed: bool) -> Comparison {
    let cas = old.record.cas();
    if cas == wanted {
        Comparison::Match
    } else if stale_allowed && wanted < cas {
        Comparison::Stale
    } else {
        Comparison::Mismatch
    }
}

/// Returns true if the item has the wanted cas id, or none is wanted.
pub(super) fn is_version(old: &Existing<'_>, wanted: Option<u64>) -> bool {
    wanted.is_none_or(|wanted| compared(old, wanted, false) == Comparison::Match)
}
