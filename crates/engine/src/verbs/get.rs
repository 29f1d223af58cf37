//! Reads: get, gat, touch, meta get.

use crate::index::Guard;
use crate::lane::session::LaneSession;
use crate::limit::expiry::end_of;
use crate::stats::bump;
use crate::verbs::version::{Body, Existing, Manner, NotWritten, OldReads, Part};
use crate::{Expiry, Get, Got, Item, Key, Outcome, ReadCount, Vivify};
use larder_log::record::Kind;
use larder_log::{Claim, Fields};

/// The result of looking a key up.
enum Found<'a> {
    /// A live item, and its expiry before the read.
    Live(Item<'a>, Expiry),
    Expired,
    Missing,
}

impl Found<'_> {
    fn has_expired(&self) -> bool {
        matches!(self, Found::Expired)
    }
}

impl LaneSession {
    /// Performs a plain get, the hot path: counts the read and raises the item's frequency.
    #[inline(always)]
    pub(crate) fn get(&self, key: &Key<'_>) -> Outcome<Option<Item<'_>>> {
        let found = self.find(key);
        if found.is_none() && self.must_read() {
            return self.needs_read(key);
        }
        bump(&self.counters.cmd_get, 1);
        let Some((place, slot, record, seen)) = found else {
            bump(&self.counters.get_misses, 1);
            return self.answer(None);
        };
        if Expiry::from_raw(seen.expiry()).is_past(self.now()) {
            bump(&self.counters.get_misses, 1);
            bump(&self.counters.get_expired, 1);
            return self.answer(None);
        }
        bump(&self.counters.get_hits, 1);
        self.count_read(place, slot, &record);
        self.answer(Some(self.item(slot, seen)))
    }

    /// Performs a get with options. Nothing is counted before the result is known, because the
    /// caller may have to repeat the call.
    pub(crate) fn get_with(&self, key: &Key<'_>, get: &Get) -> Outcome<Option<Got<'_>>> {
        let found = match get.touch {
            Some(expiry) => self.touch(key, expiry),
            None => self.look(key),
        };
        match (found, &get.vivify) {
            (Ok(Found::Live(item, old_expiry)), _) => {
                self.count_hit(key, get, false);
                self.answer(Some(self.found(key, get, item, old_expiry)))
            }
            (Ok(gone), Some(vivify)) => self.vivify(key, get, vivify, gone.has_expired()),
            (Ok(gone), None) => {
                self.count_get(get, false, gone.has_expired());
                self.answer(None)
            }
            (Err(why), _) => self.not_written(key, why),
        }
    }

    /// Counts a get as a hit and raises the item's frequency. `expired` is true if the get found an
    /// expired item and created a new one.
    fn count_hit(&self, key: &Key<'_>, get: &Get, expired: bool) {
        self.count_get(get, true, expired);
        if !get.no_bump {
            self.bump(key);
        }
    }

    fn count_get(&self, get: &Get, found: bool, expired: bool) {
        let touches = match get.counted_as {
            ReadCount::Get => false,
            ReadCount::Touch => true,
            ReadCount::TouchIfFound => found,
            ReadCount::Nothing => return,
        };
        let counters = &self.counters;
        let (all, ended_so) = match (touches, found) {
            (true, true) => (&counters.cmd_touch, &counters.touch_hits),
            (true, false) => (&counters.cmd_touch, &counters.touch_misses),
            (false, true) => (&counters.cmd_get, &counters.get_hits),
            (false, false) => (&counters.cmd_get, &counters.get_misses),
        };
        bump(all, 1);
        bump(ended_so, 1);
        if expired {
            bump(&counters.get_expired, 1);
        }
    }

    fn bump(&self, key: &Key<'_>) {
        if let Some((place, slot, record)) = self.find_record(key) {
            self.count_read(place, slot, &record);
        }
    }

    fn look(&self, key: &Key<'_>) -> Result<Found<'_>, NotWritten> {
        let Some((_, slot, _, seen)) = self.find(key) else {
            return if self.must_read() { Err(NotWritten::NeedsRead) } else { Ok(Found::Missing) };
        };
        let item = self.item(slot, seen);
        if item.expiry().is_past(self.now()) {
            return Ok(Found::Expired);
        }
        Ok(Found::Live(item, item.expiry()))
    }

    /// Gives the key's item another expiry by writing a new version with the old cas id. If the
    /// item is live, returns the new version and the old expiry.
    fn touch(&self, key: &Key<'_>, expiry: Expiry) -> Result<Found<'_>, NotWritten> {
        let guard = self.lane.index.lock(key);
        let mut found = None;
        let Some(existing) = self.existing(&guard, key, Part::Whole, &mut found)? else {
            return Ok(Found::Missing);
        };
        let old = existing.record;
        if existing.gone {
            let expired = old.kind().is_item();
            return Ok(if expired { Found::Expired } else { Found::Missing });
        }
        if old.kind() == Kind::Limiter {
            return self.touch_limiter(&guard, key, existing, expiry);
        }
        let old_expiry = Expiry::from_raw(old.expiry());
        if old_expiry == expiry {
            return Ok(Found::Live(self.item_locked(existing.place.slot(), old), old_expiry));
        }
        let fields = Fields { expiry: expiry.raw(), cas: Some(old.cas()), ..old.fields() };
        let hit_before = existing.place.slot();
        let body = Body::Pieces(old.value(), &[]);
        let manner = Manner { claim: Claim::Update, reads: OldReads::Keep };
        let item = self.write_as(&guard, key, Some(existing), manner, fields, body);
        debug_assert!(item.is_err() || item.as_ref().is_ok_and(|new| new.cas() == old.cas()));
        item.map(|item| Found::Live(item.with_frequency_of(hit_before), old_expiry))
    }

    /// Moves the end of a limiter's window.
    fn touch_limiter<'a>(
        &'a self,
        guard: &Guard<'a>,
        key: &Key<'_>,
        old: &Existing<'a>,
        expiry: Expiry,
    ) -> Result<Found<'a>, NotWritten> {
        let before = self.item_locked(old.place.slot(), old.record);
        let cas = Some(old.record.cas());
        self.count_limiter(guard, key, old, cas, |limiter, now| {
            limiter.end_at(end_of(expiry), now)
        })?;
        let Some((_, slot, record)) = self.find_record(key) else { return Ok(Found::Missing) };
        let item = self.item_locked(slot, record).with_frequency_of(old.place.slot());
        Ok(Found::Live(item, before.expiry()))
    }

    /// Creates an empty item, unless another thread did so first. In either case the read counts as
    /// a hit.
    fn vivify(
        &self,
        key: &Key<'_>,
        get: &Get,
        vivify: &Vivify,
        expired: bool,
    ) -> Outcome<Option<Got<'_>>> {
        self.update(key, |guard| {
            let mut found = None;
            let existing = self.existing(guard, key, Part::Whole, &mut found)?;
            if let Some(&Existing { place, record, gone: false }) = existing {
                // Another thread has created the item since the look-up. The item keeps its expiry,
                // even with the option `Get::touch`.
                self.count_hit(key, get, expired);
                let item = self.item_locked(place.slot(), record);
                let old_expiry = item.expiry();
                return Ok(Some(self.found(key, get, item, old_expiry)));
            }
            let (cas, expiry) = (vivify.cas, vivify.expiry.raw());
            let fields = Fields { cas, expiry, ..Fields::default() };
            let body = Body::Pieces(&[], &[]);
            let item = self.write(guard, key, existing, Claim::Write, fields, body)?;
            self.lane.recache_winners.claim(key, item.cas());
            // As in memcached, creating an item counts as a read of it.
            self.count_hit(key, get, expired);
            bump(&self.counters.total_items, 1);
            Ok(Some(Got {
                item,
                old_expiry: vivify.expiry,
                created: true,
                won: true,
                won_before: false,
            }))
        })
    }

    /// Decides whether this caller must recache the item. With the option `Get::recache`, the first
    /// reader of an item that is stale or expires soon must do so.
    fn found<'a>(&self, key: &Key<'_>, get: &Get, item: Item<'a>, old_expiry: Expiry) -> Got<'a> {
        let wanted = get.recache.is_some_and(|recache| {
            let expiry = if recache.touched { item.expiry() } else { old_expiry };
            let soon = expiry.remaining(self.now()).is_some_and(|left| left < recache.below);
            item.is_stale() || soon
        });
        let before = self.lane.recache_winners.claimed(key, item.cas());
        let won = wanted && !before && self.lane.recache_winners.claim(key, item.cas());
        Got { item, old_expiry, created: false, won, won_before: !won && (before || wanted) }
    }
}
