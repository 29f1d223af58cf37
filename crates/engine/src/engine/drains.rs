//! Requests to drain devices or to cancel drains, and the states of lanes.

use crate::Health;
use larder_log::format::LaneNumber;
use std::fmt;
use std::io;
use std::task::Waker;

/// Time after which a failed request is dropped, in microseconds, if no session has fetched its
/// error.
const STALE_US: u64 = 1_000_000;

/// The state of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneState {
    /// The lane's number in the store.
    pub number: LaneNumber,
    /// The name of the lane's device.
    pub name: String,
    /// The number of partitions that the lane owns, of 4096.
    pub partitions: usize,
    /// True if the lane is being emptied.
    pub draining: bool,
    /// True if the lane was emptied. The store no longer needs its device.
    pub drained: bool,
    /// The health of the lane's device.
    pub health: Health,
    /// The size of the lane's device and of its lower device together, in bytes.
    pub capacity: u64,
    /// The number of items in the lane's index.
    pub items: u64,
    /// The name of the lane's lower device, if the lane has one.
    pub lower: Option<String>,
}

/// The reason why a device cannot be drained.
#[derive(Debug)]
#[non_exhaustive]
pub enum DrainError {
    /// The store has no device of this name.
    Unknown {
        /// The names of the store's devices.
        names: Vec<String>,
    },
    /// The device is the only one left.
    Last,
    /// The changed table of lanes could not be written to the store's devices.
    Device(io::Error),
}

impl fmt::Display for DrainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DrainError::Unknown { names } => {
                write!(f, "the store has no device of this name, only {}", names.join(", "))
            }
            DrainError::Last => f.write_str("it is the only device that is left"),
            DrainError::Device(error) => write!(f, "the store cannot be changed: {error}"),
        }
    }
}

impl std::error::Error for DrainError {}

/// Requests of sessions to drain devices or to cancel drains. A session repeats its call until its
/// request has ended. A repeated call is not a new request, so it does not cancel an opposite
/// request that another session has made meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Drains {
    /// The requests, oldest first. A device has at most one request that has not begun.
    requests: Vec<DrainRequest>,
}

#[derive(Debug)]
pub(super) struct DrainRequest {
    name: String,
    draining: bool,
    /// The wakers of the sessions that wait for the result, each once.
    waiters: Vec<Waker>,
    /// The wakers of sessions whose opposite request was cancelled by this request. These sessions
    /// wait until this request ends, and then repeat their own.
    cancelled: Vec<Waker>,
    state: DrainState,
}

#[derive(Debug)]
enum DrainState {
    Asked,
    /// The mover is writing the changed table of lanes to the devices.
    Begun,
    Failed {
        at_us: u64,
        error: DrainError,
    },
}

impl DrainRequest {
    fn is(&self, name: &str, draining: bool) -> bool {
        self.name == name && self.draining == draining
    }

    fn is_asked(&self) -> bool {
        matches!(self.state, DrainState::Asked)
    }

    fn is_begun(&self) -> bool {
        matches!(self.state, DrainState::Begun)
    }

    fn is_pending(&self) -> bool {
        self.is_asked() || self.is_begun()
    }

    /// Wakes every session that waits for the end of this request.
    pub(super) fn wake(&self) {
        self.waiters.iter().chain(&self.cancelled).for_each(Waker::wake_by_ref);
    }
}

fn has(wakers: &[Waker], waker: &Waker) -> bool {
    wakers.iter().any(|other| other.will_wake(waker))
}

fn add(wakers: &mut Vec<Waker>, waker: Waker) {
    if !has(wakers, &waker) {
        wakers.push(waker);
    }
}

impl Drains {
    /// Returns the failure of this session's request, once. The session's next call is a new
    /// request.
    pub(super) fn failure(
        &mut self,
        name: &str,
        draining: bool,
        waker: &Waker,
        now_us: u64,
    ) -> Option<DrainError> {
        self.requests.retain(|request| match request.state {
            DrainState::Failed { at_us, .. } => now_us.saturating_sub(at_us) < STALE_US,
            DrainState::Asked | DrainState::Begun => true,
        });
        let is_it = |request: &DrainRequest| {
            !request.is_pending() && request.is(name, draining) && has(&request.waiters, waker)
        };
        let at = self.requests.iter().position(is_it)?;
        match self.requests.remove(at).state {
            DrainState::Failed { error, .. } => Some(error),
            DrainState::Asked | DrainState::Begun => None,
        }
    }

    /// Returns true if the session has made this request before, and must wait.
    pub(super) fn is_awaited(&self, name: &str, draining: bool, waker: &Waker) -> bool {
        self.requests.iter().filter(|request| request.is_pending()).any(|request| {
            (request.is(name, draining) && has(&request.waiters, waker))
                || (request.is(name, !draining) && has(&request.cancelled, waker))
        })
    }

    /// Returns true if this request has begun and not ended.
    pub(super) fn is_begun(&self, name: &str, draining: bool) -> bool {
        self.requests.iter().any(|request| request.is_begun() && request.is(name, draining))
    }

    /// Removes this request, unless it has begun.
    pub(super) fn cancel(&mut self, name: &str, draining: bool) -> Option<DrainRequest> {
        let is_it = |request: &DrainRequest| request.is_asked() && request.is(name, draining);
        let at = self.requests.iter().position(is_it)?;
        Some(self.requests.remove(at))
    }

    /// Adds a session's request. If it cancelled the opposite request, `cancelled` is that request,
    /// and its sessions wait for the end of the new one.
    pub(super) fn ask(
        &mut self,
        name: &str,
        draining: bool,
        waker: &Waker,
        cancelled: Option<DrainRequest>,
    ) {
        self.requests.retain(|request| request.is_pending() || !request.is(name, draining));
        for request in self.requests.iter_mut().filter(|request| request.is(name, !draining)) {
            request.waiters.retain(|waiter| !waiter.will_wake(waker));
        }
        let at = match self.requests.iter().position(|request| request.is(name, draining)) {
            Some(at) => at,
            None => {
                self.requests.push(DrainRequest {
                    name: name.to_owned(),
                    draining,
                    waiters: Vec::new(),
                    cancelled: Vec::new(),
                    state: DrainState::Asked,
                });
                self.requests.len() - 1
            }
        };
        let request = &mut self.requests[at];
        add(&mut request.waiters, waker.clone());
        if let Some(DrainRequest { waiters, cancelled, .. }) = cancelled {
            cancelled.into_iter().for_each(|waiter| add(&mut request.waiters, waiter));
            let others = waiters.into_iter().filter(|waiter| !waiter.will_wake(waker));
            others.for_each(|waiter| add(&mut request.cancelled, waiter));
        }
    }

    /// Begins the oldest request. Returns the device's name, and true to drain the device or false
    /// to cancel its drain.
    pub(super) fn begin(&mut self) -> Option<(String, bool)> {
        let request = self.requests.iter_mut().find(|request| request.is_asked())?;
        request.state = DrainState::Begun;
        Some((request.name.clone(), request.draining))
    }

    /// Ends the request that has begun, and wakes its sessions.
    pub(super) fn end(&mut self, done: Result<(), DrainError>, at_us: u64) {
        let Some(at) = self.requests.iter().position(DrainRequest::is_begun) else { return };
        self.requests[at].wake();
        match done {
            Ok(()) => drop(self.requests.remove(at)),
            Err(error) => self.requests[at].state = DrainState::Failed { at_us, error },
        }
    }
}
