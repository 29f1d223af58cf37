//! The rules that lose data when they are broken, each with the one place that keeps it.
//!
//! With the feature `breakable`, which only the simulator's feature of that name turns on, one rule
//! can be broken on purpose, to see that the simulator notices; and a simulation can let others run
//! where this crate otherwise runs through. Without it all of that is a constant, and compiles to
//! nothing.

/// A rule; the text says what breaking it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Rule {
    /// A segment is freed only when what superseded its records is durable.
    FreeWhenDurable = 1,
    /// A commit waits until what it covers is filled.
    WaitForAppends = 2,
    /// The greatest seq of a key counts, wherever it lies.
    SeqDecides = 3,
    /// Memory is reused after the quiescent period.
    QuiescentReuse = 4,
    /// A segment with ends is freed only when dead maps cover what they hide.
    EndsAreCovered = 5,
    /// A frame is dropped only when its segment is durable.
    DropWhenDurable = 6,
    /// A change is acknowledged when its commit is durable.
    AcknowledgeWhenDurable = 7,
    /// What is read from a device is checked before it is believed.
    CheckWhatIsRead = 8,
    /// A flush is durable before it is acknowledged.
    FenceFirst = 9,
    /// No answer depends on what is not durable.
    AnswerWhenDurable = 10,
    /// Whatever takes a record out of the index notes its death.
    DeathsAreNoted = 11,
    /// A death is noted at the earliest commit that its successor can be in.
    DeathsAreNotedEarly = 12,
    /// A dead map is written when the changes that it tells of are durable.
    MapWhenDurable = 13,
    /// A recovery notes the deaths that no map marks.
    RecoveryNotesDeaths = 14,
    /// A device has its new size durably before the superblock speaks of it.
    SizeBeforeSuperblock = 15,
    /// Nothing is durable because it was written early.
    EarlySettlesNothing = 16,
    /// No tail is overwritten that is durable, or that nothing else has.
    TailsAreKept = 17,
    /// A commit does not believe in its sync if another one has failed since its first early write.
    FailedSyncsFirst = 18,
    /// An older slot is given up only when its record's key is known to be the one that was set over it.
    OlderIsProved = 19,
    /// An older slot never answers for the key that was set over it.
    OlderNeverAnswers = 20,
    /// No dead map is made of a segment that older slots lead into.
    MapsWaitForOlder = 21,
    /// A thread's chunk ends with the commit that covers it.
    ChunksEndWithCommits = 22,
}

#[cfg(not(feature = "breakable"))]
mod switch {
    use super::Rule;

    impl Rule {
        /// Whether the rule is broken on purpose: never.
        #[inline(always)]
        pub const fn is_broken(self) -> bool {
            false
        }
    }

    /// With a store, threads take chunks from their first record on: in a model too.
    pub(crate) const CHUNKS_AT_ONCE: bool = cfg!(loom);

    /// Space was reserved that is not filled yet.
    #[inline(always)]
    pub(crate) fn reserved() {}

    /// The calling thread waits for another.
    #[inline(always)]
    pub(crate) fn waits() {}
}

#[cfg(feature = "breakable")]
mod switch {
    use super::Rule;
    use std::cell::{Cell, RefCell};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

    /// With a store, threads take chunks from their first record on: in a simulation they never append enough.
    pub(crate) const CHUNKS_AT_ONCE: bool = true;

    /// The rule that is broken in this process; 0 for none.
    static BROKEN: AtomicU8 = AtomicU8::new(0);

    thread_local! {
        static AT_RESERVATION: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
        static WAITING: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
    }

    impl Rule {
        /// All of them, in order.
        pub const ALL: [Rule; 22] = [
            Rule::FreeWhenDurable,
            Rule::WaitForAppends,
            Rule::SeqDecides,
            Rule::QuiescentReuse,
            Rule::EndsAreCovered,
            Rule::DropWhenDurable,
            Rule::AcknowledgeWhenDurable,
            Rule::CheckWhatIsRead,
            Rule::FenceFirst,
            Rule::AnswerWhenDurable,
            Rule::DeathsAreNoted,
            Rule::DeathsAreNotedEarly,
            Rule::MapWhenDurable,
            Rule::RecoveryNotesDeaths,
            Rule::SizeBeforeSuperblock,
            Rule::EarlySettlesNothing,
            Rule::TailsAreKept,
            Rule::FailedSyncsFirst,
            Rule::OlderIsProved,
            Rule::OlderNeverAnswers,
            Rule::MapsWaitForOlder,
            Rule::ChunksEndWithCommits,
        ];

        /// Whether the rule is broken on purpose.
        pub fn is_broken(self) -> bool {
            BROKEN.load(Ordering::Relaxed) == self as u8
        }

        /// Breaks this rule, and no other, for the rest of the process's life.
        pub fn break_it(self) {
            BROKEN.store(self as u8, Ordering::Relaxed);
        }

        /// What breaking the rule does.
        pub fn when_broken(self) -> &'static str {
            match self {
                Rule::FreeWhenDurable => {
                    "a segment is marked as free in the commit that supersedes its records, not after it"
                }
                Rule::WaitForAppends => "a commit does not wait for records that are being filled",
                Rule::SeqDecides => {
                    "a recovery takes the version that lies last on the device, not the greatest seq"
                }
                Rule::QuiescentReuse => "memory is reused while readers may still look at it",
                Rule::EndsAreCovered => {
                    "segments with deleted, expired or evicted items are freed without dead maps"
                }
                Rule::DropWhenDurable => "frames are dropped before their segment is durable",
                Rule::AcknowledgeWhenDurable => {
                    "a change is acknowledged when its commit is closed, before it is synced"
                }
                Rule::CheckWhatIsRead => "record checksums are not looked at",
                Rule::FenceFirst => "a flush is acknowledged before its fence is durable",
                Rule::AnswerWhenDurable => "reads answer with what is not durable yet",
                Rule::DeathsAreNoted => {
                    "superseded records do not keep segments with ends in place"
                }
                Rule::DeathsAreNotedEarly => "deaths are noted some commits too late",
                Rule::MapWhenDurable => "dead maps tell of changes that are not durable",
                Rule::RecoveryNotesDeaths => {
                    "a recovery forgets which segments hold superseded records"
                }
                Rule::SizeBeforeSuperblock => {
                    "a superblock speaks of places before the device has them durably"
                }
                Rule::EarlySettlesNothing => "what was written early counts as durable",
                Rule::TailsAreKept => "an early write goes over tails that are still needed",
                Rule::FailedSyncsFirst => {
                    "a commit overlooks syncs that failed between its early writes and its end"
                }
                Rule::OlderIsProved => {
                    "an item that a set of another key may have superseded is taken for dead"
                }
                Rule::OlderNeverAnswers => {
                    "a key whose newest version has gone is answered with one that was set over"
                }
                Rule::MapsWaitForOlder => {
                    "dead maps are made of segments in which nobody knows what has died"
                }
                Rule::ChunksEndWithCommits => {
                    "records are put into chunks that a commit has covered"
                }
            }
        }
    }

    /// Runs `others` once, when this thread next reserves space, before it fills it; `None` takes
    /// that back.
    pub fn at_next_reservation(others: Option<Box<dyn FnOnce()>>) {
        AT_RESERVATION.set(others);
    }

    /// Sets `flag` when this thread, from now on, waits for another one's append or lock.
    pub fn tell_waiting(flag: Arc<AtomicBool>) {
        WAITING.set(Some(flag));
    }

    pub(crate) fn reserved() {
        if let Some(others) = AT_RESERVATION.take() {
            others();
        }
    }

    pub(crate) fn waits() {
        WAITING.with_borrow(|flag| {
            if let Some(flag) = flag {
                flag.store(true, Ordering::Release);
            }
        });
    }
}

pub(crate) use switch::{CHUNKS_AT_ONCE, reserved, waits};
#[cfg(feature = "breakable")]
pub use switch::{at_next_reservation, tell_waiting};
