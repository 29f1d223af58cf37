//! Requests to drain or keep devices, and the states of lanes.

use crate::Health;
use larder_log::format::LaneNumber;
use std::fmt;
use std::io;
use std::task::Waker;

/// Time after which a failure that no session has fetched is dropped, in microseconds.
const STALE_US: u64 = 1_000_000;

/// The state of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneState {
    /// The lane's number in the store.
    pub number: LaneNumber,
    /// The name of its device.
    pub name: String,
    /// The number of partitions that it owns, of 4096.
    pub partitions: usize,
    /// The lane is being emptied.
    pub draining: bool,
    /// The lane was emptied. The store no longer needs its device.
    pub drained: bool,
    /// The health of its device.
    pub health: Health,
    /// The size of its device, in bytes.
    pub capacity: u64,
    /// Items in its index.
    pub items: u64,
    /// The name of its lower device, if it has one.
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
    /// The store's devices could not record the change.
    Device(io::Error),
}

impl fmt::Display for DrainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DrainError::Unknown { names } => {
                write!(f, "no device of the store is called so; there are {}", names.join(", "))
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
    /// The oldest first. A device has at most one request that has not begun.
    wishes: Vec<DrainWish>,
}

#[derive(Debug)]
pub(super) struct DrainWish {
    name: String,
    draining: bool,
    /// The wakers of the sessions that wait for the result, each once.
    askers: Vec<Waker>,
    /// The wakers of sessions whose opposite request this one cancelled. They wait until this
    /// request ends, and then repeat their own.
    cancelled: Vec<Waker>,
    state: WishState,
}

#[derive(Debug)]
enum WishState {
    Asked,
    /// The devices record the change.
    Begun,
    Failed {
        at_us: u64,
        error: DrainError,
    },
}

impl DrainWish {
    fn is(&self, name: &str, draining: bool) -> bool {
        self.name == name && self.draining == draining
    }

    fn is_asked(&self) -> bool {
        matches!(self.state, WishState::Asked)
    }

    fn is_begun(&self) -> bool {
        matches!(self.state, WishState::Begun)
    }

    fn is_pending(&self) -> bool {
        self.is_asked() || self.is_begun()
    }

    /// Wakes every session that waits for the end of this request.
    pub(super) fn wake(&self) {
        self.askers.iter().chain(&self.cancelled).for_each(Waker::wake_by_ref);
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
    /// Returns the failure of this session's request, once. Its next call is a new request.
    pub(super) fn failure(
        &mut self,
        name: &str,
        draining: bool,
        waker: &Waker,
        now_us: u64,
    ) -> Option<DrainError> {
        self.wishes.retain(|wish| match wish.state {
            WishState::Failed { at_us, .. } => now_us.saturating_sub(at_us) < STALE_US,
            WishState::Asked | WishState::Begun => true,
        });
        let is_it = |wish: &DrainWish| {
            !wish.is_pending() && wish.is(name, draining) && has(&wish.askers, waker)
        };
        let at = self.wishes.iter().position(is_it)?;
        match self.wishes.remove(at).state {
            WishState::Failed { error, .. } => Some(error),
            WishState::Asked | WishState::Begun => None,
        }
    }

    /// Returns true if the session has made this request before, and must wait.
    pub(super) fn is_awaited(&self, name: &str, draining: bool, waker: &Waker) -> bool {
        self.wishes.iter().filter(|wish| wish.is_pending()).any(|wish| {
            (wish.is(name, draining) && has(&wish.askers, waker))
                || (wish.is(name, !draining) && has(&wish.cancelled, waker))
        })
    }

    /// Returns true if this request has begun and not ended.
    pub(super) fn is_begun(&self, name: &str, draining: bool) -> bool {
        self.wishes.iter().any(|wish| wish.is_begun() && wish.is(name, draining))
    }

    /// Removes this request, unless it has begun.
    pub(super) fn cancel(&mut self, name: &str, draining: bool) -> Option<DrainWish> {
        let is_it = |wish: &DrainWish| wish.is_asked() && wish.is(name, draining);
        let at = self.wishes.iter().position(is_it)?;
        Some(self.wishes.remove(at))
    }

    /// Notes a request, and the opposite one that it cancelled.
    pub(super) fn ask(
        &mut self,
        name: &str,
        draining: bool,
        waker: &Waker,
        cancelled: Option<DrainWish>,
    ) {
        self.wishes.retain(|wish| wish.is_pending() || !wish.is(name, draining));
        for wish in self.wishes.iter_mut().filter(|wish| wish.is(name, !draining)) {
            wish.askers.retain(|asker| !asker.will_wake(waker));
        }
        let at = match self.wishes.iter().position(|wish| wish.is(name, draining)) {
            Some(at) => at,
            None => {
                self.wishes.push(DrainWish {
                    name: name.to_owned(),
                    draining,
                    askers: Vec::new(),
                    cancelled: Vec::new(),
                    state: WishState::Asked,
                });
                self.wishes.len() - 1
            }
        };
        let wish = &mut self.wishes[at];
        add(&mut wish.askers, waker.clone());
        if let Some(DrainWish { askers, cancelled, .. }) = cancelled {
            cancelled.into_iter().for_each(|asker| add(&mut wish.askers, asker));
            let others = askers.into_iter().filter(|asker| !asker.will_wake(waker));
            others.for_each(|asker| add(&mut wish.cancelled, asker));
        }
    }

    /// Begins the oldest request. Returns the device's name, and true if the device is to be
    /// drained, false if it is to be kept.
    pub(super) fn begin(&mut self) -> Option<(String, bool)> {
        let wish = self.wishes.iter_mut().find(|wish| wish.is_asked())?;
        wish.state = WishState::Begun;
        Some((wish.name.clone(), wish.draining))
    }

    /// Ends the request that has begun, and wakes its sessions.
    pub(super) fn end(&mut self, done: Result<(), DrainError>, at_us: u64) {
        let Some(at) = self.wishes.iter().position(DrainWish::is_begun) else { return };
        self.wishes[at].wake();
        match done {
            Ok(()) => drop(self.wishes.remove(at)),
            Err(error) => self.wishes[at].state = WishState::Failed { at_us, error },
        }
    }
}
