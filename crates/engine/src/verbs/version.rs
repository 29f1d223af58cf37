//! The version of an item that a key's slot leads to, the parts of a new version, and the reasons
//! why a new version was not written.

use crate::index::{NoSlot, SlotPlace};
use crate::large::LargeValue;
use larder_log::{Claim, Record};

/// The record that a key's slot leads to, under the stripe's lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Existing<'a> {
    pub(crate) place: SlotPlace<'a>,
    pub(crate) record: Record<'a>,
    /// True if clients see no item: the record has expired, or is a tombstone or a limiter without
    /// used units.
    pub(crate) gone: bool,
}

/// The part of an existing record that the writer of a new version reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    /// Everything except the value: a large value is not read into memory.
    Head,
    /// The whole record.
    Whole,
}

/// What a new version replaces.
#[derive(Clone, Copy)]
pub(crate) enum Before<'e, 'a> {
    Nothing,
    Known(&'e Existing<'a>),
    /// A record that was not read: see [`older`](crate::older).
    Unread(SlotPlace<'a>),
}

impl<'e, 'a> Before<'e, 'a> {
    pub(crate) fn known(self) -> Option<&'e Existing<'a>> {
        match self {
            Before::Known(existing) => Some(existing),
            Before::Nothing | Before::Unread(_) => None,
        }
    }

    /// Returns true if the replaced version is live, and clients have read it or it has inherited a
    /// read.
    pub(crate) fn was_read(self) -> bool {
        match self {
            Before::Known(old) => !old.gone && old.place.slot().frequency() > 0,
            Before::Unread(place) => place.slot().frequency() > 0,
            Before::Nothing => false,
        }
    }
}

/// The bytes of a new value.
pub(crate) enum Body<'a> {
    /// Two consecutive pieces.
    Pieces(&'a [u8], &'a [u8]),
    /// A large value, in the mapping into which it was received.
    Large(&'a mut LargeValue),
}

/// How a new version is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// The urgency of the append: how much of a nearly full store it may use.
    pub(crate) claim: Claim,
    /// Whether the new version inherits the old one's read frequency.
    pub(crate) reads: OldReads,
}

/// How a new version inherits the read frequency of the version that it replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OldReads {
    /// To clients the new version is still the same item, for example after a touch, so it keeps
    /// the read frequency. The caller must have copied all fields of the old version that the call
    /// does not change.
    Keep,
    /// The value is a new one, and clients see it as unread. For the cleaner, the new version
    /// begins with one read if the old version [was read](Before::was_read).
    Inherit,
}

impl Body<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Body::Pieces(a, b) => a.len() + b.len(),
            Body::Large(large) => large.len(),
        }
    }
}

/// The reason why nothing was written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NotWritten {
    /// The item exceeds the largest size.
    TooLarge,
    /// Memory, or a place in the store, must first be reclaimed for this claim.
    NoSpace(Claim),
    /// The record that the key's slot leads to must first be read from the store.
    NeedsRead,
    /// The versions of the lane's lease are used up. The next commit extends the lease.
    NoVersion,
    /// Commits fail. The lane accepts no writes until commits succeed again.
    StoreFailed,
    /// Either the memory of the received large value is gone, or memory can never hold both the old
    /// and the new version of a large value, or too many keys share the key's buckets in the index.
    OutOfMemory,
}

impl From<NoSlot> for NotWritten {
    fn from(why: NoSlot) -> Self {
        match why {
            NoSlot::Full => NotWritten::NoSpace(Claim::Write),
            NoSlot::Crowded => NotWritten::OutOfMemory,
        }
    }
}
