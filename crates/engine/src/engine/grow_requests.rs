//! Requests to grow devices, and their results.

use larder_log::GrowError as LogError;
use std::fmt;
use std::task::Waker;

/// Time after which a failed request is dropped, in microseconds, if no session has fetched its
/// error.
const STALE_US: u64 = 1_000_000;
/// Time after which a fulfilled request is dropped, in microseconds, although a session has not
/// fetched the result. The session's client has probably left. If a session calls later, it makes a
/// new request. This does no harm, because the device already has the requested size.
const GRANTED_STALE_US: u64 = 60_000_000;

/// The reason why a device does not grow. The store continues with its present size.
#[derive(Debug)]
#[non_exhaustive]
pub enum GrowError {
    /// The store has several devices, and the request names none of them.
    Which {
        /// The names of all devices.
        names: Vec<String>,
    },
    /// The store has no device of this name.
    Unknown {
        /// The names of all devices.
        names: Vec<String>,
    },
    /// The device has a lower device. Only the lower device can grow.
    HasLower {
        /// The name of the lower device.
        lower: String,
    },
    /// The log on the device refuses to grow.
    Refused(LogError),
}

impl fmt::Display for GrowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GrowError::Which { names } => {
                write!(f, "the store has several devices, name one: {}", names.join(", "))
            }
            GrowError::Unknown { names } => {
                write!(f, "the store has no device of this name, only {}", names.join(", "))
            }
            GrowError::HasLower { lower } => write!(
                f,
                "it has a lower device and cannot grow any more: grow the lower one, {lower}"
            ),
            GrowError::Refused(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for GrowError {}

/// Requests of sessions to grow devices, and their results.
#[derive(Debug, Default)]
pub(crate) struct Growths {
    /// True while the thread that carries out the requests runs.
    pub(super) running: bool,
    /// The requests, oldest first.
    pub(super) requests: Vec<GrowRequest>,
}

#[derive(Debug)]
pub(super) struct GrowRequest {
    pub(super) name: Option<String>,
    pub(super) bytes: u64,
    /// Size of the device in bytes at the time of the request; `None` if there was no such device.
    pub(super) size: Option<u64>,
    /// The wakers of the sessions that wait for the result, each once.
    pub(super) waiters: Vec<Waker>,
    pub(super) ended: Option<Ended>,
}

#[derive(Debug)]
pub(super) struct Ended {
    pub(super) at_us: u64,
    pub(super) result: Result<(), GrowError>,
}

impl GrowRequest {
    pub(super) fn is(&self, name: Option<&str>, bytes: u64) -> bool {
        self.name.as_deref() == name && self.bytes == bytes
    }

    pub(super) fn has_waiter(&self, waker: &Waker) -> bool {
        self.waiters.iter().any(|waiter| waiter.will_wake(waker))
    }

    /// Returns true if the result should no longer be reported.
    pub(super) fn is_stale(&self, now_us: u64) -> bool {
        self.ended.as_ref().is_some_and(|ended| {
            let limit = if ended.result.is_ok() { GRANTED_STALE_US } else { STALE_US };
            now_us.saturating_sub(ended.at_us) >= limit
        })
    }
}

impl Growths {
    /// Returns the result of this session's request, and only once. A success stays here for the
    /// other sessions that wait for it. A failure is removed, so the next call of each other
    /// session is a new request.
    pub(super) fn answer(
        &mut self,
        name: Option<&str>,
        bytes: u64,
        waker: &Waker,
    ) -> Option<Result<(), GrowError>> {
        let is_it = |request: &GrowRequest| {
            request.ended.is_some() && request.is(name, bytes) && request.has_waiter(waker)
        };
        let at = self.requests.iter().position(is_it)?;
        let request = &mut self.requests[at];
        request.waiters.retain(|waiter| !waiter.will_wake(waker));
        let is_granted = request.ended.as_ref().is_some_and(|ended| ended.result.is_ok());
        if is_granted && !request.waiters.is_empty() {
            return Some(Ok(()));
        }
        self.requests.remove(at).ended.map(|ended| ended.result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A result that a session has not fetched within its limit is stale. Clients may leave before
    /// they have fetched a result.
    #[test]
    fn results_that_no_session_fetches_are_dropped() {
        let ended = |result| GrowRequest {
            name: None,
            bytes: 1,
            size: None,
            waiters: vec![Waker::noop().clone()],
            ended: Some(Ended { at_us: 7, result }),
        };
        let granted = ended(Ok(()));
        assert!(!granted.is_stale(7 + GRANTED_STALE_US - 1));
        assert!(granted.is_stale(7 + GRANTED_STALE_US));
        let refused = ended(Err(GrowError::Which { names: Vec::new() }));
        assert!(!refused.is_stale(7 + STALE_US - 1));
        assert!(refused.is_stale(7 + STALE_US));
        assert!(!GrowRequest { ended: None, ..granted }.is_stale(u64::MAX));
    }
}
