//! The expiry of the items that hold limiters.

use super::{Algorithm, Limiter, Nanos};
use crate::{Expiry, NANOS, UnixSeconds, second_of};
use larder_log::Record;
use larder_log::record::Kind;

/// The longest time that [`record_expiry`] adds to the needed expiry, in seconds. It keeps a
/// present expiry that is later than needed by at most twice the added time. So a limiter without
/// used units stays in memory for at most twice this time.
const SPARE_MAX: u64 = 10 * 60;

/// Converts the expiry of an item to the end of a limiter's window; `None` for never.
pub(crate) fn end_of(expiry: Expiry) -> Option<Nanos> {
    expiry.seconds().map(|end| u64::from(end) * NANOS)
}

/// Returns true if the record is a limiter without used units, which counts as missing. The record
/// must not change during the call.
#[inline]
pub(crate) fn is_unused(record: &Record<'_>, now: Nanos) -> bool {
    record.kind() == Kind::Limiter
        && Limiter::decode(record.value()).is_some_and(|limiter| limiter.is_new(now))
}

/// Returns the expiry that clients see. From about this expiry on, no units are used.
pub(crate) fn shown_expiry(limiter: &Limiter, now: Nanos) -> Expiry {
    match limiter.reset(now) {
        None => Expiry::NEVER,
        // Adds whole seconds, so that the item's remaining seconds are the limiter's remaining
        // time, rounded up.
        Some(left) => Expiry::at(second_of(now).saturating_add(whole_seconds(left))),
    }
}

/// Returns the expiry of a limiter's record; 0 for never. From the expiry on, no units are used. A
/// change in place cannot change the expiry, so the `old` expiry is kept unless it is too early or
/// much too late.
pub(crate) fn record_expiry(limiter: &Limiter, old: UnixSeconds, now: Nanos) -> UnixSeconds {
    let Some(left) = limiter.reset(now) else { return 0 };
    let needed = whole_seconds(now.saturating_add(left));
    let limit = limiter.limit();
    // With sliding windows and GCRA, each request that takes units moves the needed expiry. So the
    // expiry is set later than needed, and stays late enough for many requests in a row.
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
