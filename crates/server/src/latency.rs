//! Latencies of commands: a histogram for each worker and class of commands. Only the worker writes
//! its histograms, so timing a command needs no atomic addition and no shared cache line.
//!
//! A *call* is one call of the service by the event loop, with the input of one connection. It
//! answers all commands that arrived together. A worker reads the clock once per call that answers
//! commands, not once per command. A *turn* is one iteration of the worker's event loop and makes
//! many calls.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use larder_disk::{Histogram, Recorder};
use larder_engine::{NANOS, SecretHash};

use crate::net::Counter;
use crate::waits::{Wait, Waits};

/// A class of commands with a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandClass {
    /// Retrievals without touch, and every `mg`.
    Get,
    /// Stores of every kind.
    Set,
    Delete,
    /// Increments and decrements.
    Incr,
    /// Touches, and retrievals that touch, except `mg`.
    Touch,
    /// Requests for units of a rate limit.
    Limit,
    /// All other commands, and input that is no command.
    Other,
}

/// The largest number of slow calls and of slow commands timed apart, per second and worker, whose
/// details are recorded. Further ones are only counted.
const DETAILED: u32 = 32;

/// The number of classes.
pub(crate) const CLASSES: usize = 7;

impl CommandClass {
    /// All classes, in the order of their numbers, with their names.
    pub(crate) const ALL: [(CommandClass, &str); CLASSES] = [
        (CommandClass::Get, "get"),
        (CommandClass::Set, "set"),
        (CommandClass::Delete, "delete"),
        (CommandClass::Incr, "incr"),
        (CommandClass::Touch, "touch"),
        (CommandClass::Limit, "limit"),
        (CommandClass::Other, "other"),
    ];

    pub(crate) fn name(self) -> &'static str {
        CommandClass::ALL[self as usize].1
    }
}

/// The histograms of one worker. The alignment keeps them off the cache lines of other workers. It
/// is two cache lines, because processors fetch cache lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct LatencyCounters {
    classes: [Recorder; CLASSES],
    /// How long replies waited for their commits.
    commit_waits: Recorder,
    /// Number of slow commands: those that took at least `Latencies::slow_ns`.
    slow: Counter,
}

// The memory limit does not include the histograms, so they must be small: those of all workers of
// a large machine together must take far less memory than one segment.
const _: () = assert!(size_of::<LatencyCounters>() <= 4096);

/// The histograms of all workers, and the settings that say what is measured.
#[derive(Debug)]
pub(crate) struct Latencies {
    on: AtomicBool,
    /// The least duration of a slow command, in nanoseconds; [`NEVER`] if none is slow.
    slow_ns: AtomicU64,
    workers: Mutex<Vec<Arc<LatencyCounters>>>,
}

/// A threshold that no command reaches.
const NEVER: u64 = u64::MAX;

impl Default for Latencies {
    fn default() -> Self {
        let slow_ns = AtomicU64::new(NEVER);
        Latencies { on: AtomicBool::new(true), slow_ns, workers: Mutex::default() }
    }
}

impl Latencies {
    /// Returns the timer of a new worker.
    pub(crate) fn timer(&self) -> Timer {
        let counters = Arc::new(LatencyCounters::default());
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&counters));
        Timer {
            counters,
            on: Cell::new(false),
            counts: Cell::new(false),
            led_by: Cell::new(Lead::Counted),
            slow_ns: Cell::new(NEVER),
            detailed: Cell::new((0, 0)),
            turn_ns: Cell::new(0),
            began_ns: Cell::new(0),
            done: std::array::from_fn(|_| Cell::new(0)),
        }
    }

    /// Returns true if workers time commands.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Turns timing on or off. Each worker notices the change in its next turn.
    pub(crate) fn set_on(&self, on: bool) {
        self.on.store(on, Relaxed);
    }

    /// Returns the least duration of a slow command; `None` if none is slow.
    pub(crate) fn slow_from(&self) -> Option<Duration> {
        Some(self.slow_ns.load(Relaxed)).filter(|ns| *ns != NEVER).map(Duration::from_nanos)
    }

    /// Sets the least duration of a slow command. Each worker notices the change in its next turn.
    pub(crate) fn set_slow_from(&self, least: Option<Duration>) {
        let ns = least.and_then(|least| u64::try_from(least.as_nanos()).ok());
        self.slow_ns.store(ns.unwrap_or(NEVER), Relaxed);
    }

    /// Returns the sums over all workers.
    pub(crate) fn totals(&self) -> LatencyTotals {
        let mut totals = LatencyTotals::default();
        for worker in &*self.workers.lock().unwrap_or_else(PoisonError::into_inner) {
            totals.slow = totals.slow.wrapping_add(worker.slow.get());
            totals.commit_waits.add(&worker.commit_waits.read());
            for (total, counters) in totals.classes.iter_mut().zip(&worker.classes) {
                total.add(&counters.read());
            }
        }
        totals
    }
}

/// Times the commands of one worker. All times are in nanoseconds, and points in time are times of
/// the server's clock ([`Clock::nanos`](crate::clock::Clock::nanos)).
#[derive(Debug)]
pub(crate) struct Timer {
    counters: Arc<LatencyCounters>,
    on: Cell<bool>,
    /// True if [`answered`](Self::answered) only has to count the command. If false, it must also
    /// find out why, because there are two reasons: timing is off, or all commands of the present
    /// call so far are timed apart from the call (see [`Timing`]).
    counts: Cell<bool>,
    /// How the first command of the present call is timed.
    led_by: Cell<Lead>,
    /// The least duration of a slow command.
    slow_ns: Cell<u64>,
    /// The second in which the last slow command ended, as whole seconds of the server's clock, and
    /// the number of records of slow commands that were made in this second.
    detailed: Cell<(u64, u32)>,
    /// Time at which the present turn of the event loop began.
    turn_ns: Cell<u64>,
    /// Time from which the commands of the present call are timed. This is the beginning of the
    /// turn, or an earlier time if the first request of the call had to wait.
    began_ns: Cell<u64>,
    /// The number of commands of each class that the present call has answered.
    done: [Cell<u32>; CLASSES],
}

/// How the first command of a call is timed: with the other commands of the call, or apart from
/// them (see [`Timing`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lead {
    /// The first command is timed with the other commands of the call, or the call has no command
    /// yet.
    Counted,
    /// The first command is timed apart, and the call has counted no other command yet.
    Apart,
    /// The first command is timed apart. The call has since counted other commands, and the first
    /// of these is of this class.
    ApartBefore(CommandClass),
}

/// What the [`Timer`] must know of a command that is timed apart from its call. A command is timed
/// apart if its reply is withheld, or if it has waited for longer than the call's other commands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    began_ns: u64,
    /// Start of the turn of the event loop that executed the command.
    turn_ns: u64,
    /// The first key of the command.
    key: Option<SecretHash>,
    /// Length of the request, in bytes.
    request_bytes: u32,
    class: CommandClass,
    /// The reasons for which the command has waited so far.
    waits: Waits,
}

// Each withheld reply holds a `Timing`, so a larger type would cost memory for every waiting
// client.
const _: () = assert!(size_of::<Timing>() <= 32);

impl Timing {
    pub(crate) fn class(&self) -> CommandClass {
        self.class
    }

    pub(crate) fn key(&self) -> Option<SecretHash> {
        self.key
    }

    pub(crate) fn request_bytes(&self) -> u64 {
        self.request_bytes.into()
    }

    pub(crate) fn waits(&self) -> Waits {
        self.waits
    }

    /// Returns this timing with `wait` added to the reasons for which the command has waited.
    pub(crate) fn with(self, wait: Wait) -> Timing {
        Timing { waits: self.waits.with(wait), ..self }
    }
}

/// The commands that a call has answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    pub(crate) commands: u32,
    /// The class of the first of these commands if `follows` is true, otherwise of any of them.
    pub(crate) class: CommandClass,
    /// True if the first command of the call is timed apart and therefore not among these commands.
    pub(crate) follows: bool,
    pub(crate) took_ns: u64,
}

impl Timer {
    /// Begins a turn of the event loop.
    pub(crate) fn begin_turn(&self, now_ns: u64, latencies: &Latencies) {
        self.turn_ns.set(now_ns);
        self.on.set(latencies.is_on());
        self.slow_ns.set(latencies.slow_ns.load(Relaxed));
    }

    /// Begins a call whose first request has waited since `since_ns`. A value of 0 means that the
    /// request arrived in the present turn.
    #[inline]
    pub(crate) fn begin(&self, since_ns: u64) {
        self.began_ns.set(if since_ns == 0 { self.turn_ns.get() } else { since_ns });
        self.counts.set(self.on.get());
        self.led_by.set(Lead::Counted);
    }

    /// Returns when the present turn of the event loop began.
    pub(crate) fn turn_ns(&self) -> u64 {
        self.turn_ns.get()
    }

    /// Returns the time from which the commands of the present call are timed.
    #[inline]
    pub(crate) fn began_ns(&self) -> u64 {
        self.began_ns.get()
    }

    /// Counts a command that the present call has answered.
    #[inline]
    pub(crate) fn answered(&self, class: CommandClass) {
        if !self.counts.get() && !self.counts_first(class) {
            return;
        }
        let done = &self.done[class as usize];
        done.set(done.get() + 1);
    }

    /// Handles a command while `counts` is false, which means that timing is off, or that all
    /// commands of the call so far are timed apart. Returns true if the command must be counted.
    #[cold]
    fn counts_first(&self, class: CommandClass) -> bool {
        let on = self.on.get();
        if on {
            self.led_by.set(Lead::ApartBefore(class));
            self.counts.set(true);
        }
        on
    }

    /// Returns the timing with which the caller can time a command apart from its call; `None` if
    /// timing is off. When the reply is sent, the caller passes the timing to
    /// [`released`](Self::released). `key` is the command's first key. `waited_ns` is the time that
    /// the command had waited before [`began_ns`](Self::began_ns). `waits` has the reasons of all
    /// its waits.
    pub(crate) fn apart(
        &self,
        class: CommandClass,
        key: Option<SecretHash>,
        request_bytes: usize,
        (waited_ns, waits): (u64, Waits),
    ) -> Option<Timing> {
        let request_bytes = request_bytes.try_into().unwrap_or(u32::MAX);
        let began_ns = self.began_ns.get().saturating_sub(waited_ns);
        let turn_ns = self.turn_ns.get();
        self.on.get().then_some(Timing { began_ns, turn_ns, key, request_bytes, class, waits })
    }

    /// Notes that a command of the present call is timed apart from the call.
    pub(crate) fn note_apart(&self) {
        if self.counts.get() && self.done.iter().all(|done| done.get() == 0) {
            self.led_by.set(Lead::Apart);
            self.counts.set(false);
        }
    }

    /// Ends a call. Returns `None` without reading the clock if the call has answered no commands.
    #[inline]
    pub(crate) fn end(&self, now_ns: impl FnOnce() -> u64) -> Option<Answered> {
        if self.done.iter().all(|done| done.get() == 0) {
            return None;
        }
        let took_ns = now_ns().saturating_sub(self.began_ns.get());
        let mut answered =
            Answered { commands: 0, class: CommandClass::Other, follows: false, took_ns };
        for ((class, _), done) in CommandClass::ALL.iter().zip(&self.done) {
            match done.replace(0) {
                0 => {}
                n => {
                    self.counters.classes[*class as usize].add(took_ns, n.into());
                    answered.commands += n;
                    answered.class = *class;
                }
            }
        }
        if let Lead::ApartBefore(class) = self.led_by.get() {
            (answered.class, answered.follows) = (class, true);
        }
        Some(answered)
    }

    /// Counts a command that was timed apart from its call, when it is answered. Returns the time
    /// that the command took, in nanoseconds.
    pub(crate) fn released(&self, timing: &Timing, now_ns: u64) -> u64 {
        let took_ns = now_ns.saturating_sub(timing.began_ns);
        self.counters.classes[timing.class as usize].add(took_ns, 1);
        took_ns
    }

    /// Counts a reply that has waited for its commit until now. The wait begins with the turn of
    /// the event loop that executed the command.
    pub(crate) fn note_commit_wait(&self, timing: &Timing, now_ns: u64) {
        self.counters.commit_waits.add(now_ns.saturating_sub(timing.turn_ns), 1);
    }

    /// Returns true if a command that took `took_ns` counts as slow.
    #[inline]
    pub(crate) fn is_slow(&self, took_ns: u64) -> bool {
        took_ns >= self.slow_ns.get()
    }

    /// Returns true if commands are timed.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.get()
    }

    /// Counts slow commands. Returns true if their details should be recorded. Recording is
    /// limited, so that a worker whose commands are all slow does not become slower.
    #[cold]
    pub(crate) fn count_slow(&self, commands: u32, now_ns: u64) -> bool {
        self.counters.slow.add(commands.into());
        let second = now_ns / NANOS;
        let so_far = match self.detailed.get() {
            (last, so_far) if last == second => so_far,
            _ => 0,
        };
        self.detailed.set((second, (so_far + 1).min(DETAILED)));
        so_far < DETAILED
    }
}

/// The sums of all workers' histograms.
#[derive(Clone, Debug, Default)]
pub(crate) struct LatencyTotals {
    classes: [Histogram; CLASSES],
    /// How long replies waited for their commits.
    pub(crate) commit_waits: Histogram,
    /// Number of slow commands.
    pub(crate) slow: u64,
}

impl LatencyTotals {
    /// Returns the latencies since `earlier`.
    pub(crate) fn since(mut self, earlier: &LatencyTotals) -> LatencyTotals {
        self.slow = self.slow.wrapping_sub(earlier.slow);
        self.commit_waits = self.commit_waits.since(&earlier.commit_waits);
        for (class, before) in self.classes.iter_mut().zip(&earlier.classes) {
            *class = class.since(before);
        }
        self
    }

    /// Returns the histogram of all commands.
    pub(crate) fn all(&self) -> Histogram {
        let mut all = Histogram::default();
        self.classes.iter().for_each(|class| all.add(class));
        all
    }

    /// Returns the name and the histogram of each class.
    pub(crate) fn classes(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
        CommandClass::ALL.iter().map(|(_, name)| *name).zip(&self.classes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(totals: &LatencyTotals, name: &str) -> Histogram {
        totals.classes().find(|(class, _)| *class == name).unwrap().1.clone()
    }

    #[test]
    fn the_commands_of_a_call_share_its_time() {
        let latencies = Latencies::default();
        let timer = latencies.timer();
        timer.begin_turn(1_000_000, &latencies);
        timer.begin(0);
        timer.answered(CommandClass::Get);
        timer.answered(CommandClass::Get);
        timer.answered(CommandClass::Set);
        timer.end(|| 1_003_000);
        // A call that has answered nothing must not read the clock.
        timer.begin(0);
        timer.end(|| panic!("the clock was read"));
        // The time of a command that has waited since an earlier turn must include the wait.
        timer.begin(600_000);
        timer.answered(CommandClass::Get);
        timer.end(|| 1_100_000);
        let totals = latencies.totals();
        let get = class(&totals, "get");
        assert_eq!((get.count(), get.sum), (3, 2 * 3000 + 500_000));
        // A value that equals a bound counts in the bucket below that bound.
        assert!(get.cumulative().any(|pair| pair == (3000, 2)));
        assert!(get.cumulative().any(|pair| pair == (300_000, 2)));
        assert!(get.cumulative().any(|pair| pair == (500_000, 3)));
        assert_eq!(class(&totals, "set").count(), 1);
        assert_eq!((totals.all().count(), totals.all().sum), (4, 3 * 3000 + 500_000));
        let before = totals.clone();
        let timing = timer.apart(CommandClass::Get, None, 9, (50_000, Waits::NONE)).unwrap();
        assert_eq!(timer.released(&timing, 700_000_000), 700_000_000 - 550_000);
        timer.note_commit_wait(&timing, 700_000_000);
        timer.begin_turn(2_000_000, &latencies);
        let waits = latencies.totals().since(&before).commit_waits;
        // The wait for the commit begins with the turn that executed the command, not with the
        // earlier wait of 50 µs.
        assert_eq!((waits.count(), waits.sum), (1, 699_000_000));
        assert_eq!((timing.key(), timing.request_bytes()), (None, 9));
        let get = class(&latencies.totals().since(&before), "get");
        assert_eq!((get.count(), get.sum), (1, 700_000_000 - 550_000));
    }

    #[test]
    fn a_call_tells_whether_its_first_command_is_timed_apart() {
        let latencies = Latencies::default();
        let timer = latencies.timer();
        timer.begin_turn(1, &latencies);
        let ended = || {
            let answered = timer.end(|| 5).unwrap();
            (answered.commands, answered.class, answered.follows)
        };
        timer.begin(0);
        timer.answered(CommandClass::Get);
        timer.note_apart();
        timer.answered(CommandClass::Delete);
        assert_eq!(ended(), (2, CommandClass::Delete, false));
        timer.begin(0);
        timer.note_apart();
        timer.note_apart();
        timer.answered(CommandClass::Get);
        timer.note_apart();
        timer.answered(CommandClass::Delete);
        assert_eq!(ended(), (2, CommandClass::Get, true));
        // After a call in which all commands are timed apart, the next call must begin anew.
        timer.begin(0);
        timer.note_apart();
        assert!(timer.end(|| 5).is_none());
        timer.begin(0);
        timer.answered(CommandClass::Set);
        assert_eq!(ended(), (1, CommandClass::Set, false));
        assert_eq!(latencies.totals().all().count(), 5);
    }

    #[test]
    fn nothing_is_timed_while_it_is_off() {
        let latencies = Latencies::default();
        let timer = latencies.timer();
        latencies.set_on(false);
        timer.begin_turn(1, &latencies);
        timer.begin(0);
        timer.answered(CommandClass::Get);
        timer.end(|| panic!("the clock was read"));
        assert!(timer.apart(CommandClass::Get, None, 9, (0, Waits::NONE)).is_none());
        timer.note_apart();
        timer.answered(CommandClass::Get);
        timer.end(|| panic!("the clock was read"));
        assert_eq!(class(&latencies.totals(), "get").count(), 0);
    }

    #[test]
    fn slow_commands_are_counted_and_few_are_recorded() {
        let latencies = Latencies::default();
        let timer = latencies.timer();
        timer.begin_turn(1, &latencies);
        assert!(!timer.is_slow(u64::MAX - 1) && latencies.slow_from().is_none());
        latencies.set_slow_from(Some(Duration::from_millis(10)));
        timer.begin_turn(1, &latencies);
        assert!(timer.is_slow(10_000_000) && !timer.is_slow(9_999_999));
        let recorded =
            |second: u64| (0..100).filter(|_| timer.count_slow(3, second * NANOS + 5)).count();
        assert_eq!([recorded(4), recorded(4), recorded(5)], [32, 0, 32]);
        assert_eq!(latencies.totals().slow, 900);
        let before = latencies.totals();
        timer.count_slow(1, 0);
        assert_eq!(latencies.totals().since(&before).slow, 1);
    }
}
