//! Admission of values that are too long to stay in a connection's input until they are complete.
//! Such a value needs a *place* before its first byte is kept. All places together, except that of
//! a long value (see below), take a bounded share of memory, [`Engine::arriving_limit`]. So clients
//! that announce values and send them slowly delay only each other.
//!
//! While no value waits for a place, the values with places may arrive at any speed. While other
//! values wait, the client of a value with a place must not pause for longer than [`PAUSE`]. After
//! a grace period, its value must also arrive at [`LEAST_RATE`]. Otherwise the value loses its
//! memory to the next value in the queue, and its client receives the error for a lack of memory.
//!
//! Values longer than [`USUAL`] and than 1/[`LONG_SHARE`] of the memory for arriving values are
//! *long*. They have a separate queue and are received one at a time. So a client that announces a
//! gigabyte does not delay a client that announces a megabyte. The rules above apply to each queue
//! separately.

use super::value_buffers::{self, ValueBuffer, ValueBufferPool};
use larder_engine::{Engine, LargeValue, Value};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// A value is long if it takes more than 1/`LONG_SHARE` of the memory for arriving values.
const LONG_SHARE: u64 = 4;
/// Values of up to this many bytes never count as long, however little memory there is. This is the
/// usual size limit of an item.
const USUAL: u64 = 1 << 20;
/// The longest pause of a client that sends an admitted value while other values wait for a place.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest pause of an admitted value while other values wait, if the server may have caused
/// the pause. The server may be the cause if it has not read any byte of the value yet, or had no
/// memory for the bytes that arrived.
const IDLE: Duration = Duration::from_secs(5);
/// Grace period after a value's first byte, in which no lowest rate is required.
const GRACE: Duration = Duration::from_millis(500);
/// The lowest rate at which an admitted value must arrive after [`GRACE`] while other values wait,
/// in bytes per second.
const LEAST_RATE: u64 = 1 << 20;
/// Interval between checks of the rates, while any value waits.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(40);
/// A check of a queue stops taking memory from slow values once it has freed this many bytes.
/// Unmapping 1 MiB stops the worker for about 0.2 ms.
const EXPELLED_AT_ONCE: usize = 1 << 20;

/// The memory of a value that is being received.
#[derive(Default)]
pub(super) enum Memory {
    /// The value has no memory: no byte of it was kept yet, or a check has taken its memory away.
    /// In the second case, the rest of the value is discarded.
    #[default]
    None,
    /// A buffer of the [`ValueBufferPool`]. When the value is complete, it is copied from the
    /// buffer into the log.
    Buffer(ValueBuffer),
    /// Memory of the engine in which the complete item stays. Only bytes that arrive through the
    /// connection's input are copied.
    Large(LargeValue),
}

impl Memory {
    /// Returns the number of bytes of memory that a large value takes; 0 for other values, which
    /// take about as much as has arrived.
    fn held(&self) -> usize {
        match self {
            Memory::None | Memory::Buffer(_) => 0,
            Memory::Large(large) => large.held(),
        }
    }

    /// Returns the complete value.
    pub(super) fn value(&mut self) -> Value<'_> {
        match self {
            Memory::None => Value::Bytes(&[]),
            Memory::Buffer(buffer) => Value::Bytes(buffer.bytes()),
            Memory::Large(large) => Value::Large(large),
        }
    }
}

/// The state of a value's request for a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ArrivalState {
    /// The value waits in the queue.
    #[default]
    Waiting,
    /// The value has a place and may arrive.
    Admitted,
    /// The value has lost its place because it arrived too slowly, or its connection has given up
    /// waiting for a place.
    Expelled,
}

/// The state of a value that is being received. The worker of the value's connection shares this
/// state with all other workers, which check the rate of the value.
struct Arriving {
    /// Length of the value, in bytes.
    len: usize,
    /// The share of the memory for arriving values that the value's place reserves, in bytes.
    memory: u64,
    waker: Waker,
    state: Mutex<ArrivingState>,
}

#[derive(Default)]
struct ArrivingState {
    arrival_state: ArrivalState,
    /// The times of the first and of the last attempt to keep bytes of the value since it was
    /// admitted.
    times: Option<(Instant, Instant)>,
    /// Time of the first check that found the value admitted, but no byte of it received.
    idle_since: Option<Instant>,
    /// True if the server had no memory for the bytes that arrived last.
    starved: bool,
    /// True if the value has arrived completely, with the bytes that end it in the protocol.
    complete: bool,
    arrived: usize,
    memory: Memory,
}

impl Arriving {
    fn lock(&self) -> MutexGuard<'_, ArrivingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(&self) {
        self.lock().arrival_state = ArrivalState::Admitted;
    }

    /// Checks the rate of the value. If the value is too slow and `may` is true, expels the value,
    /// frees its memory, and returns the number of bytes that became free. `may` is false once the
    /// check has freed enough memory. Returns `None` if the value keeps its place.
    fn expel(&self, now: Instant, may: bool) -> Option<usize> {
        let mut state = self.lock();
        let since = |earlier| now.saturating_duration_since(earlier);
        let slow = match state.times {
            _ if state.complete => false,
            // No byte of the value was received yet, perhaps because the server has not read the
            // input. The wait for the first byte must have a bound: the server reads no input from
            // a client that does not read its replies, so such a client could keep its place for
            // ever.
            None => since(*state.idle_since.get_or_insert(now)) > IDLE,
            Some((_, last)) if state.starved => since(last) > IDLE,
            Some((first, last)) => {
                let wanted = since(first).saturating_sub(GRACE).as_millis() as u64 * LEAST_RATE;
                let late = state.arrived < self.len && (state.arrived as u64) < wanted / 1000;
                since(last) > PAUSE || late
            }
        };
        if !(slow && may) {
            return None;
        }
        state.arrival_state = ArrivalState::Expelled;
        let memory = std::mem::replace(&mut state.memory, Memory::None);
        Some(state.arrived.max(memory.held()))
    }
}

/// The values of one kind, usual or long. Some have a place (`admitted`), and the others wait for
/// one (`queue`).
#[derive(Default)]
struct ArrivalQueue {
    taken: u64,
    admitted: Vec<Arc<Arriving>>,
    queue: VecDeque<Arc<Arriving>>,
}

impl ArrivalQueue {
    /// Returns true if a value that takes `memory` bytes fits beside the admitted values. All
    /// admitted values together may take `room` bytes. If no other value has a place, a value of
    /// any length fits.
    fn has_room(&self, memory: u64, room: u64) -> bool {
        self.taken == 0 || self.taken + memory <= room
    }

    /// Admits a new value, or queues it if there is no room.
    fn enter(&mut self, place: Arc<Arriving>, room: u64) {
        if self.queue.is_empty() && self.has_room(place.memory, room) {
            self.give(place);
        } else {
            self.queue.push_back(place);
        }
    }

    fn give(&mut self, place: Arc<Arriving>) {
        self.taken += place.memory;
        place.admit();
        self.admitted.push(place);
    }

    /// Admits waiting values from the front of the queue while there is room.
    fn admit(&mut self, room: u64) {
        while let Some(first) = self.queue.front()
            && self.has_room(first.memory, room)
            && let Some(first) = self.queue.pop_front()
        {
            let waker = first.waker.clone();
            self.give(first);
            waker.wake();
        }
    }

    /// Removes a value, admitted or waiting. Returns false if this queue does not contain the
    /// value.
    fn leave(&mut self, place: &Arc<Arriving>) -> bool {
        let is_it = |other: &Arc<Arriving>| Arc::ptr_eq(place, other);
        if let Some(at) = self.admitted.iter().position(is_it) {
            self.admitted.swap_remove(at);
            self.taken -= place.memory;
            return true;
        }
        let at = self.queue.iter().position(is_it);
        at.is_some_and(|at| self.queue.remove(at).is_some())
    }

    fn expel_slow(&mut self, now: Instant) {
        if self.queue.is_empty() {
            return;
        }
        let (mut freed, taken) = (0, &mut self.taken);
        self.admitted.retain(|place| {
            let expelled = place.expel(now, freed < EXPELLED_AT_ONCE);
            if let Some(arrived) = expelled {
                freed += arrived;
                *taken -= place.memory;
            }
            expelled.is_none()
        });
    }
}

/// The values that all connections are receiving.
pub(crate) struct Arrivals {
    engine: Arc<Engine>,
    /// The queue of values of usual length, and the queue of long values.
    lines: Mutex<[ArrivalQueue; 2]>,
    waiting: AtomicUsize,
    pub(crate) buffers: Arc<ValueBufferPool>,
}

impl Arrivals {
    pub(crate) fn new(engine: &Arc<Engine>) -> Self {
        Arrivals {
            engine: Arc::clone(engine),
            lines: Mutex::default(),
            waiting: AtomicUsize::new(0),
            buffers: ValueBufferPool::new(engine),
        }
    }

    /// Requests a place for a value of `len` bytes. If the value has to wait, `waker` is woken when
    /// the value is admitted.
    pub(super) fn enter(self: &Arc<Self>, len: usize, waker: &Waker) -> Arrival {
        let memory = match len <= self.engine.large_value_threshold() {
            true => value_buffers::capacity(len),
            false => len,
        };
        let (memory, waker) = (memory as u64, waker.clone());
        let place = Arc::new(Arriving { len, memory, waker, state: Mutex::default() });
        let share = self.share();
        self.change(|[usual, long]| match len as u64 > (share / LONG_SHARE).max(USUAL) {
            false => usual.enter(Arc::clone(&place), share),
            true => long.enter(Arc::clone(&place), 0),
        });
        Arrival { arrivals: Arc::clone(self), place }
    }

    /// Returns true if any value waits for a place.
    #[inline]
    pub(super) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// If values wait for a place, expels admitted values that arrive too slowly, and admits
    /// waiting values instead.
    pub(super) fn expel_slow(&self) {
        let now = Instant::now();
        self.change(|lines| lines.iter_mut().for_each(|line| line.expel_slow(now)));
    }

    fn share(&self) -> u64 {
        self.engine.arriving_limit()
    }

    fn change(&self, change: impl FnOnce(&mut [ArrivalQueue; 2])) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut lines);
        let [usual, long] = &mut *lines;
        usual.admit(self.share());
        long.admit(0);
        self.waiting.store(usual.queue.len() + long.queue.len(), Ordering::Relaxed);
    }
}

/// A value's place, or its position in the queue for a place. Dropping an `Arrival` gives up the
/// place or the position.
pub(super) struct Arrival {
    arrivals: Arc<Arrivals>,
    place: Arc<Arriving>,
}

impl Arrival {
    pub(super) fn state(&self) -> ArrivalState {
        self.place.lock().arrival_state
    }

    /// If the value is admitted, calls `receive` with its memory. Otherwise returns the value's
    /// state as an error.
    pub(super) fn with<T>(
        &mut self,
        receive: impl FnOnce(&mut Memory) -> T,
    ) -> Result<T, ArrivalState> {
        let mut state = self.place.lock();
        let ArrivingState { arrival_state: ArrivalState::Admitted, memory, .. } = &mut *state
        else {
            return Err(state.arrival_state);
        };
        Ok(receive(memory))
    }

    /// Stops waiting for a place. Returns false if the value was not waiting.
    pub(super) fn give_up(&self) -> bool {
        let place = &self.place;
        let mut waited = false;
        self.arrivals.change(|lines| {
            waited = place.lock().arrival_state == ArrivalState::Waiting;
            if waited {
                place.lock().arrival_state = ArrivalState::Expelled;
                let _ = lines.iter_mut().any(|line| line.leave(place));
            }
        });
        waited
    }

    /// Notes that `bytes` more bytes of the value have arrived.
    pub(super) fn arrived(&self, bytes: usize) {
        let mut state = self.place.lock();
        let now = Instant::now();
        state.arrived += bytes;
        state.starved = false;
        state.times = Some((state.times.map_or(now, |(first, _)| first), now));
    }

    /// Notes that the server had no memory for the bytes that arrived, so the client did not cause
    /// the delay.
    pub(super) fn starved(&self) {
        let mut state = self.place.lock();
        let now = Instant::now();
        state.starved = true;
        state.times = Some((state.times.map_or(now, |(first, _)| first), now));
    }

    /// Notes that the value has arrived completely, with the bytes that end it in the protocol.
    pub(super) fn complete(&self) {
        self.place.lock().complete = true;
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let place = &self.place;
        self.arrivals.change(|lines| {
            let _ = lines.iter_mut().any(|line| line.leave(place));
        });
    }
}

impl std::fmt::Debug for Arrival {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (len, state) = (self.place.len, self.state());
        f.debug_struct("Arrival").field("len", &len).field("state", &state).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_engine::Options;

    fn arrivals() -> Arc<Arrivals> {
        let engine =
            Engine::open_without_threads(Options { memory: 64 << 20, ..Options::default() });
        Arc::new(Arrivals::new(&engine.unwrap()))
    }

    #[test]
    fn places_are_bounded_and_given_in_order() {
        let arrivals = arrivals();
        let enter = |len| arrivals.enter(len, Waker::noop());
        let mut first: Vec<Arrival> = (0..8).map(|_| enter(1 << 20)).collect();
        assert!(first.iter().all(|arrival| arrival.state() == ArrivalState::Admitted));
        let (next, last) = (enter(1 << 20), enter(20_000));
        assert_eq!((next.state(), last.state()), (ArrivalState::Waiting, ArrivalState::Waiting));
        assert!(arrivals.is_waited_for());
        first.pop();
        assert_eq!((next.state(), last.state()), (ArrivalState::Admitted, ArrivalState::Waiting));
        first.clear();
        assert_eq!(last.state(), ArrivalState::Admitted);
        assert!(!arrivals.is_waited_for());
    }

    #[test]
    fn long_values_arrive_one_at_a_time_and_delay_no_others() {
        let arrivals = arrivals();
        let long = arrivals.enter(30 << 20, Waker::noop());
        let second = arrivals.enter(3 << 20, Waker::noop());
        let usual = arrivals.enter(2 << 20, Waker::noop());
        let states = [long.state(), second.state(), usual.state()];
        assert_eq!(states, [ArrivalState::Admitted, ArrivalState::Waiting, ArrivalState::Admitted]);
        drop(long);
        assert_eq!(second.state(), ArrivalState::Admitted);
    }

    #[test]
    fn a_slow_value_keeps_its_place_until_others_wait() {
        let arrivals = arrivals();
        let enter = || arrivals.enter(2 << 20, Waker::noop());
        let (quick, mut slow) = (enter(), enter());
        quick.arrived(2 << 20);
        quick.complete();
        slow.arrived(1000);
        let later = Instant::now() + Duration::from_secs(2);
        let expel = || {
            arrivals.change(|lines| lines.iter_mut().for_each(|line| line.expel_slow(later)));
        };
        expel();
        assert_eq!(slow.state(), ArrivalState::Admitted);
        let others = [enter(), enter(), enter()];
        // No check has run since `others` were queued, so the slow value must still have its place.
        assert_eq!(others[2].state(), ArrivalState::Waiting);
        expel();
        assert_eq!(others[2].state(), ArrivalState::Admitted);
        assert_eq!(quick.state(), ArrivalState::Admitted);
        assert_eq!(slow.state(), ArrivalState::Expelled);
        assert!(slow.with(|_| ()).is_err());
    }

    #[test]
    fn one_check_frees_a_bounded_part_of_slow_values() {
        let arrivals = arrivals();
        let enter = || arrivals.enter(1 << 20, Waker::noop());
        let slow: Vec<Arrival> = (0..8).map(|_| enter()).collect();
        slow.iter().for_each(|slow| slow.arrived(600_000));
        let waiting: Vec<Arrival> = (0..8).map(|_| enter()).collect();
        let later = Instant::now() + Duration::from_secs(2);
        for look in 1..=4 {
            arrivals.change(|lines| lines.iter_mut().for_each(|line| line.expel_slow(later)));
            let of = |arrivals: &[Arrival], state| {
                arrivals.iter().filter(|arrival| arrival.state() == state).count()
            };
            assert_eq!(of(&slow, ArrivalState::Expelled), 2 * look);
            assert_eq!(of(&waiting, ArrivalState::Admitted), 2 * look);
        }
    }

    #[test]
    fn a_stalled_unseen_or_starved_value_loses_its_place() {
        let arrivals = arrivals();
        let enter = || arrivals.enter(2 << 20, Waker::noop());
        let [withheld, unseen, starved, complete] = [enter(), enter(), enter(), enter()];
        withheld.arrived(2 << 20);
        starved.starved();
        complete.arrived(2 << 20);
        complete.complete();
        let waiting = [enter(), enter(), enter()];
        let expel = |seconds| {
            let later = Instant::now() + Duration::from_secs(seconds);
            arrivals.change(|lines| lines.iter_mut().for_each(|line| line.expel_slow(later)));
        };
        expel(2);
        assert_eq!(withheld.state(), ArrivalState::Expelled);
        assert_eq!(unseen.state(), ArrivalState::Admitted);
        assert_eq!(starved.state(), ArrivalState::Admitted);
        expel(60);
        assert_eq!(unseen.state(), ArrivalState::Expelled);
        assert_eq!(starved.state(), ArrivalState::Expelled);
        assert_eq!(complete.state(), ArrivalState::Admitted);
        assert!(waiting.iter().all(|arrival| arrival.state() == ArrivalState::Admitted));
    }
}
