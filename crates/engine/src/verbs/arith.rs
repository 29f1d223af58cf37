//! Increment and decrement of decimal numbers, by memcached's rules: incr wraps at 2^64, decr stops
//! at 0, and a result shorter than the stored text is padded with spaces.

use crate::index::Guard;
use crate::lane::session::LaneSession;
use crate::limit::expiry::{end_of, shown_expiry};
use crate::number::parse_number;
use crate::stats::bump;
use crate::verbs::store::is_version;
use crate::verbs::version::{Body, Existing, Manner, NotWritten, OldReads, Part};
use crate::{Arith, Counted, Expiry, Key, Outcome};
use larder_log::record::Kind;
use larder_log::{Claim, Fields};

impl LaneSession {
    /// Increments or decrements a number atomically: each of any number of concurrent calls is
    /// applied exactly once and sees its own result.
    pub(crate) fn arith(&self, key: &Key<'_>, arith: &Arith) -> Outcome<Counted> {
        let (hits, misses) = if arith.decrement {
            (&self.counters.decr_hits, &self.counters.decr_misses)
        } else {
            (&self.counters.incr_hits, &self.counters.incr_misses)
        };
        self.update(key, |guard| {
            let mut found = None;
            match self.existing(guard, key, Part::Whole, &mut found)? {
                Some(old) if !old.gone => {
                    let counted = self.count(guard, key, old, arith)?;
                    if matches!(counted, Counted::Value { .. }) {
                        bump(hits, 1);
                    }
                    Ok(counted)
                }
                existing => {
                    let created = self.create_counter(guard, key, existing, arith)?;
                    if matches!(created, Counted::NotFound) {
                        bump(misses, 1);
                    }
                    Ok(created)
                }
            }
        })
    }

    fn count<'a>(
        &'a self,
        guard: &Guard<'a>,
        key: &Key<'_>,
        old: &Existing<'a>,
        arith: &Arith,
    ) -> Result<Counted, NotWritten> {
        let text = old.record.value();
        // As in memcached, this check comes first. The answer for an empty value is "not a number",
        // even if the cas id differs.
        if text.is_empty() {
            return Ok(Counted::NonNumeric);
        }
        if !is_version(old, arith.compare) {
            return Ok(Counted::Exists);
        }
        if old.record.kind() == Kind::Limiter {
            return self.count_units(guard, key, old, arith);
        }
        let Some(number) = parse_number(text) else { return Ok(Counted::NonNumeric) };
        let value = if arith.decrement {
            number.saturating_sub(arith.delta)
        } else {
            number.wrapping_add(arith.delta)
        };
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(value).as_bytes();
        let padding = &SPACES[..text.len().saturating_sub(digits.len()).min(SPACES.len())];
        let kept = old.record.fields();
        let expiry = arith.expiry.map_or(kept.expiry, Expiry::raw);
        let kind = kind_of(digits.len() + padding.len());
        let fields = Fields { kind, cas: arith.cas, expiry, ..kept };
        if let Some(cas) = self.change_in_place(guard, old, &fields, (digits, padding))? {
            return Ok(Counted::Value {
                value,
                cas,
                expiry: Expiry::from_raw(expiry),
                created: false,
            });
        }
        // memcached changes a number in place if it does not become longer, so the item keeps its
        // mark of having been read.
        let reads = if digits.len() <= text.len() { OldReads::Keep } else { OldReads::Inherit };
        let body = Body::Pieces(digits, padding);
        let manner = Manner { claim: Claim::Update, reads };
        let item = self.write_as(guard, key, Some(old), manner, fields, body)?;
        bump(&self.counters.counted_anew, 1);
        let (cas, expiry) = (item.cas(), item.expiry());
        Ok(Counted::Value { value, cas, expiry, created: false })
    }

    /// Adds to a limiter's used units or subtracts from them, without checking its limit.
    fn count_units<'a>(
        &'a self,
        guard: &Guard<'a>,
        key: &Key<'_>,
        old: &Existing<'a>,
        arith: &Arith,
    ) -> Result<Counted, NotWritten> {
        let counted = self.count_limiter(guard, key, old, arith.cas, |limiter, now| {
            match arith.decrement {
                true => limiter.give_back(arith.delta, now),
                false => limiter.add(arith.delta, now),
            }
            if let Some(expiry) = arith.expiry {
                limiter.end_at(end_of(expiry), now);
            }
        })?;
        let Some((limiter, cas)) = counted else { return Ok(Counted::NonNumeric) };
        let (value, expiry) = (limiter.used(self.nanos()), shown_expiry(&limiter, self.nanos()));
        Ok(Counted::Value { value, cas, expiry, created: false })
    }

    fn create_counter<'a>(
        &'a self,
        guard: &Guard<'a>,
        key: &Key<'_>,
        expired: Option<&Existing<'a>>,
        arith: &Arith,
    ) -> Result<Counted, NotWritten> {
        let Some(create) = arith.create else { return Ok(Counted::NotFound) };
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(create.initial).as_bytes();
        let kind = kind_of(digits.len());
        let (cas, expiry) = (arith.cas, create.expiry.raw());
        let fields = Fields { kind, cas, expiry, ..Fields::default() };
        let body = Body::Pieces(digits, &[]);
        let item = self.write(guard, key, expired, Claim::Write, fields, body)?;
        bump(&self.counters.total_items, 1);
        Ok(Counted::Value {
            value: create.initial,
            cas: item.cas(),
            expiry: create.expiry,
            created: true,
        })
    }
}

/// Returns the kind of record for a number with this many bytes of text.
fn kind_of(len: usize) -> Kind {
    if len <= COUNTER_MAX { Kind::Counter } else { Kind::Item }
}

/// The largest length of a number that changes in place, in bytes, padding included.
const COUNTER_MAX: usize = 32;
/// Spaces for padding. The length of this array is the largest number of padding spaces. If a
/// result would need more spaces, the new value is shorter than the stored text.
static SPACES: [u8; 4096] = [b' '; 4096];

#[cfg(all(test, loom))]
mod loom_tests;
