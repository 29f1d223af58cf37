//! The expiry of the items that hold limiters.

use super::{Algorithm, Limiter, Nanos};
use crate::{Expiry, NANOS, UnixSeconds, second_of};
use larder_log::Record;
use larder_log::record::Kind;

/// The longest time, in seconds, for which a limiter that is as new may still take memory.
const SPARE_MAX: u64 = 10 * 60;

/// Returns the end of a window that is to end at `expiry`.
pub(crate) fn end_of(expiry: Expiry) -> Option<Nanos> {
    expiry.seconds().map(|end| u64::from(end) * NANOS)
}

/// Returns true if the record is a limiter that is as good as missing. Nothing may change the record
/// meanwhile.
#[inline]
pub(crate) fn is_as_new(record: &Record<'_>, now: Nanos) -> bool {
    record.kind() == Kind::Limiter
        && Limiter::decode(record.value()).is_some_and(|limiter| limiter.is_new(now))
}

/// Returns the expiry that clients see: the limiter is as new within that second.
pub(crate) fn shown_expiry(limiter: &Limiter, now: Nanos) -> Expiry {
    match limiter.reset(now) {
        None => Expiry::NEVER,
        // So that the remaining seconds are those of the limiter, rounded up.
        Some(left) => Expiry::at(second_of(now).saturating_add(whole_seconds(left))),
    }
}

/// Returns the expiry of a limiter's record, which is not before the limiter is as new. Because it
/// is part of the record that does not change in place, the `old` one is kept while it fits.
pub(crate) fn record_expiry(limiter: &Limiter, old: UnixSeconds, now: Nanos) -> UnixSeconds {
    let Some(left) = limiter.reset(now) else { return 0 };
    let needed = whole_seconds(now.saturating_add(left));
    let limit = limiter.limit();
    // With these, the end moves on with every request.
    let spare = match limit.algorithm() {
        Algorithm::Fixed => 0,
        Algorithm::Sliding => limit.window() / NANOS + 1,
        Algorithm::Gcra => {
            let full = u128::from(limit.window()) * u128::from(limit.burst());
            let seconds = full / u128::from(limit.budget().max(1)) / u128::from(NANOS) + 1;
            u64::try_from(seconds).unwrap_or(u64::MAX)
        }
    };
    let spare = spare.min(SPARE_MAX) as UnixSeconds;
    let most = needed.saturating_add(spare);
    if (needed..=most.saturating_add(spare)).contains(&old) { old } else { most }
}

/// Converts to seconds, rounded up.
fn whole_seconds(time: Nanos) -> UnixSeconds {
    UnixSeconds::try_from(time.div_ceil(NANOS)).unwrap_or(UnixSeconds::MAX)
}
