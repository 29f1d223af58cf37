//! The rules that keep data safe. The code that enforces a rule first calls [`Rule::is_broken`].
//!
//! With the feature `breakable`, a simulation can break one rule on purpose, to test that the
//! simulation notices. This file also has the hooks by which a simulation lets other threads run at
//! certain points, such as between the reservation and the filling of a record. Only the feature
//! `breakable` of the crate `sim` turns the feature on. Without it, no rule is ever broken and the
//! hooks compile to nothing.

/// A rule. Breaking it loses data or returns wrong answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Rule {
    /// A segment is freed only when the changes that superseded its records are durable.
    FreeWhenDurable = 1,
    /// A commit waits until the records that it covers are filled.
    WaitForAppends = 2,
    /// Of the versions of a key, a recovery takes the one with the greatest seq, wherever its
    /// record lies.
    SeqDecides = 3,
    /// Memory is reused only after every participant has passed a quiescent point or is asleep.
    QuiescentReuse = 4,
    /// A segment with ends is freed only when dead maps cover the records that the ends hide, or
    /// when the ends were moved as tombstones.
    EndsAreCovered = 5,
    /// A frame is dropped only when its segment is durable.
    DropWhenDurable = 6,
    /// In sync mode, a change is acknowledged only when its commit is durable.
    AcknowledgeWhenDurable = 7,
    /// Bytes read from a device are checked before they are trusted.
    CheckWhatIsRead = 8,
    /// A `flush_all` is durable before it is acknowledged.
    FenceFirst = 9,
    /// In sync mode, no answer depends on data that is not durable.
    AnswerWhenDurable = 10,
    /// Every removal of a record from the index notes its death.
    DeathsAreNoted = 11,
    /// A death is noted with the earliest commit that the record's successor can be in.
    DeathsAreNotedEarly = 12,
    /// A dead map is written only when the changes that superseded its records are durable.
    MapWhenDurable = 13,
    /// A recovery notes the deaths that no dead map has.
    RecoveryNotesDeaths = 14,
    /// The new size of a grown device is durable before the superblock names it.
    SizeBeforeSuperblock = 15,
    /// Records that were written early count as durable only once their commit is durable.
    EarlySettlesNothing = 16,
    /// No tail place is overwritten while it holds the durable tail, the tail being synced, or the
    /// last tail written.
    TailsAreKept = 17,
    /// A commit does not trust its sync if another sync has failed since the commit's first early
    /// write.
    FailedSyncsFirst = 18,
    /// An older slot leads to an item that a set seems to have replaced without reading it. The
    /// slot is dropped only when the key in its record is known to be the key that was set.
    OlderIsProved = 19,
    /// A read of a key never returns an item that a set of this key has replaced, although an older
    /// slot still leads to the item.
    OlderNeverAnswers = 20,
    /// No dead map is made for a segment that older slots lead to.
    MapsWaitForOlder = 21,
    /// A thread's chunk takes no records after the commit that covers it.
    ChunksEndWithCommits = 22,
    /// A record does not change once a commit covers it or it was written early. Otherwise a change
    /// of a counter could be missing from the commit that its reply waits for.
    CoveredIsFixed = 23,
}

#[cfg(not(feature = "breakable"))]
mod switch {
    use super::Rule;

    impl Rule {
        /// Always false: without the feature `breakable` no rule is broken.
        #[inline(always)]
        pub const fn is_broken(self) -> bool {
            false
        }
    }

    /// If true, a thread takes a chunk for its first record in a store, without first appending
    /// many records. Loom models append too few records to take chunks otherwise.
    pub(crate) const CHUNKS_AT_ONCE: bool = cfg!(loom);

    /// Called when a thread has reserved space and not filled it yet. Only a simulation does
    /// something here.
    #[inline(always)]
    pub(crate) fn reserved() {}

    /// Called while the calling thread waits for another thread. Only a simulation does something
    /// here.
    #[inline(always)]
    pub(crate) fn waits() {}
}

#[cfg(feature = "breakable")]
mod switch {
    use super::Rule;
    use std::cell::{Cell, RefCell};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

    /// If true, a thread takes a chunk for its first record in a store, without first appending
    /// many records. Simulated threads append too few records to take chunks otherwise.
    pub(crate) const CHUNKS_AT_ONCE: bool = true;

    /// The rule that is broken in this process; 0 if none.
    static BROKEN: AtomicU8 = AtomicU8::new(0);

    thread_local! {
        static AT_RESERVATION: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
        static WAITING: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
    }

    impl Rule {
        /// All rules, in order.
        pub const ALL: [Rule; 23] = [
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
            Rule::CoveredIsFixed,
        ];

        /// Returns true if the rule is broken on purpose.
        pub fn is_broken(self) -> bool {
            BROKEN.load(Ordering::Relaxed) == self as u8
        }

        /// Breaks this rule, and no other, until the process ends.
        pub fn break_it(self) {
            BROKEN.store(self as u8, Ordering::Relaxed);
        }

        /// Describes what breaking the rule does.
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
                Rule::AnswerWhenDurable => "reads return data that is not durable yet",
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
                Rule::EarlySettlesNothing => "records that were written early count as durable",
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
                    "dead maps are made for segments that older slots lead to"
                }
                Rule::ChunksEndWithCommits => {
                    "records are put into chunks that a commit has covered"
                }
                Rule::CoveredIsFixed => "counters change in place although a commit covers them",
            }
        }
    }

    /// Runs `others` once, when this thread next reserves space, before it fills that space. `None`
    /// withdraws an earlier call.
    pub fn at_next_reservation(others: Option<Box<dyn FnOnce()>>) {
        AT_RESERVATION.set(others);
    }

    /// From now on, sets `flag` whenever the calling thread waits for an append or a lock of
    /// another thread.
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
