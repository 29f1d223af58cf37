//! Rate limits. A request takes units of a limiter, or only reads the limiter. A limiter is an item
//! whose value is the [state](crate::limit) of its algorithm. All other verbs see the value as a
//! number: the used units.

use crate::index::Guard;
use crate::lane::session::LaneSession;
use crate::limit::expiry::{end_of, record_expiry};
use crate::limit::{Decision, Limit, Limiter, Nanos};
use crate::number::parse_number;
use crate::stats::bump;
use crate::verbs::store::is_version;
use crate::verbs::version::{Body, Existing, Manner, NotWritten, OldReads, Part};
use crate::{Durability, Expiry, Key, NANOS, Outcome, Take, Taken};
use larder_log::record::Kind;
use larder_log::sync::atomic::Ordering;
use larder_log::{Address, Claim, Fields, Record};

impl LaneSession {
    /// Takes units of a limiter, all or none. A missing limiter is created.
    pub(crate) fn take(&self, key: &Key<'_>, take: &Take) -> Outcome<Taken> {
        self.update(key, |guard| self.take_locked(guard, key, take))
    }

    fn take_locked<'a>(
        &'a self,
        guard: &Guard<'a>,
        key: &Key<'_>,
        take: &Take,
    ) -> Result<Taken, NotWritten> {
        let mut found = None;
        let existing = self.existing(guard, key, Part::Whole, &mut found)?;
        let live = existing.filter(|old| !old.gone);
        let limiter = match live {
            None if take.compare.is_some() => return Ok(Taken::NotFound),
            None => None,
            Some(old) if old.record.value().is_empty() => return Ok(Taken::NonNumeric),
            Some(old) if !is_version(old, take.compare) => return Ok(Taken::Exists),
            Some(old) => match limiter_of(&old.record, &take.limit, self.nanos()) {
                Some(limiter) => Some(limiter),
                None => return Ok(Taken::NonNumeric),
            },
        };
        let now = limiter.as_ref().map_or(self.nanos(), |limiter| self.time_of(limiter));
        let (mut decision, next) = Limiter::decide(limiter.as_ref(), &take.limit, take.cost, now);
        if let Some(old) = live {
            // Counts the request as a read, because most refusals write nothing. Otherwise a
            // limiter that refuses all requests would be evicted as never read.
            self.count_read(old.place.cell(), old.place.slot(), &old.record);
        }
        let is_plain = live.is_some_and(|old| old.record.kind() != Kind::Limiter);
        // A plain number becomes a limiter even if the request is refused. Otherwise its window
        // would begin anew with every request.
        let next = next.or(limiter.filter(|_| is_plain && take.cost != 0));
        // The changed limit of a refused request need not be stored. So a full or failing store
        // answers such a request as any other refused one.
        let must_store = decision.allowed || is_plain;
        let written = match next {
            Some(mut next) => {
                if decision.allowed
                    && let Some(expiry) = take.expiry
                {
                    next.end_at(end_of(expiry), now);
                    decision.reset = next.reset(now);
                    decision.remaining = take.limit.capacity().saturating_sub(next.used(now));
                }
                match self.put_limiter(guard, key, existing, &next, take.cas, now) {
                    Ok(written) => Some((next, written)),
                    Err(why) if must_store || matches!(why, NotWritten::NeedsRead) => {
                        return Err(why);
                    }
                    Err(_) => None,
                }
            }
            None => None,
        };
        self.wait_as(take.durability, written.as_ref().map(|(_, written)| written));
        self.count_decision(&decision);
        Ok(match written {
            Some((next, Written { cas, .. })) => {
                Taken::Decided { decision, limiter: Some(next), cas }
            }
            None => {
                let cas = live.map_or(0, |old| old.record.cas());
                Taken::Decided { decision, limiter, cas }
            }
        })
    }

    /// Changes a limiter without deciding on a request, for example for `incr`. Returns the limiter
    /// with its new cas id, or `None` if its value cannot be decoded.
    pub(crate) fn count_limiter<'a>(
        &'a self,
        guard: &Guard<'a>,
        key: &Key<'_>,
        old: &Existing<'a>,
        cas: Option<u64>,
        change: impl FnOnce(&mut Limiter, Nanos),
    ) -> Result<Option<(Limiter, u64)>, NotWritten> {
        let Some(mut limiter) = Limiter::decode(old.record.value()) else { return Ok(None) };
        let now = self.time_of(&limiter);
        change(&mut limiter, now);
        let written = self.put_limiter(guard, key, Some(old), &limiter, cas, now)?;
        Ok(Some((limiter, written.cas)))
    }

    /// Returns the time at which this session changes a limiter. The time of a limiter must not go
    /// back. So if a session whose turn began later has already changed the limiter, returns the
    /// limiter's own time. Otherwise returns this session's time, even if the limiter's time is
    /// later than the time of every session: then the clock was set back.
    fn time_of(&self, limiter: &Limiter) -> Nanos {
        let (now, since) = (self.nanos(), limiter.since());
        let seen = u64::from(self.lane.now.load(Ordering::Relaxed)) + 1;
        if since > now && since < seen * NANOS { since } else { now }
    }

    /// Writes a limiter: in place, or as a new record.
    fn put_limiter<'a>(
        &'a self,
        guard: &Guard<'a>,
        key: &Key<'_>,
        existing: Option<&Existing<'a>>,
        limiter: &Limiter,
        cas: Option<u64>,
        now: Nanos,
    ) -> Result<Written, NotWritten> {
        let mut bytes = [0; Limiter::ENCODED_MAX];
        let value = limiter.encode(&mut bytes);
        let before = existing.filter(|old| old.record.kind() == Kind::Limiter);
        let kept = match existing {
            Some(old) if !old.gone => old.record.fields(),
            // Clients do not see the old item, so the limiter keeps none of its fields except
            // `inherits_reads`. A limiter without used units needs this field unchanged: otherwise
            // its record could not change in place.
            Some(old) => {
                let inherits_reads = old.record.inherits_reads();
                Fields { inherits_reads, ..Fields::default() }
            }
            None => Fields::default(),
        };
        let old_expiry = before.map_or(0, |old| old.record.expiry());
        let expiry = record_expiry(limiter, old_expiry, now);
        let fields = Fields { kind: Kind::Limiter, cas, expiry, ..kept };
        if let Some(old) = before
            && let Some(cas) = self.change_in_place(guard, old, &fields, (value, &[]))?
        {
            let address = old.place.slot().address();
            return Ok(Written { cas, address, size: old.record.size() });
        }
        let claim = if existing.is_some() { Claim::Update } else { Claim::Write };
        let reads = if before.is_some() { OldReads::Keep } else { OldReads::Inherit };
        let (manner, body) = (Manner { claim, reads }, Body::Pieces(value, &[]));
        let item = self.write_as(guard, key, existing, manner, fields, body)?;
        bump(&self.counters.counted_anew, 1);
        Ok(Written { cas: item.cas(), address: item.address(), size: item.record_size() })
    }

    /// If `durability` is given, makes the answer wait as `durability` says, and not as the store's
    /// own durability says.
    fn wait_as(&self, durability: Option<Durability>, written: Option<&Written>) {
        match (durability, written) {
            (Some(Durability::Sync), Some(written)) => {
                self.depends_on_record(written.address, written.size);
            }
            (Some(Durability::Async | Durability::None), _) => {
                self.depends_on_nothing(written.is_some());
            }
            (Some(Durability::Sync) | None, _) => {}
        }
    }

    fn count_decision(&self, decision: &Decision) {
        bump(if decision.allowed { &self.counters.taken } else { &self.counters.refused }, 1);
    }
}

/// Where a limiter was written.
struct Written {
    cas: u64,
    address: Address,
    size: usize,
}

/// Returns the limiter in a record, or the limiter that a plain number becomes: the number is its
/// used units, and its window ends when the item expires. Returns `None` for anything else.
fn limiter_of(record: &Record<'_>, limit: &Limit, now: Nanos) -> Option<Limiter> {
    if record.kind() == Kind::Limiter {
        return Limiter::decode(record.value());
    }
    let used = parse_number(record.value())?;
    let end = end_of(Expiry::from_raw(record.expiry()));
    Some(Limiter::with_used(limit, used, end, now))
}
