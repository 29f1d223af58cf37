//! Versions of an item: what a key's slot leads to, what a new version is made from, and why there is
//! none.

use crate::index::Place;
use crate::large::LargeValue;
use larder_log::{Claim, Record};

/// What a key's slot leads to, under the stripe's lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Existing<'a> {
    pub(crate) place: Place<'a>,
    pub(crate) record: Record<'a>,
    /// It has expired, or is a tombstone: clients see none.
    pub(crate) gone: bool,
}

/// What a new version takes the place of.
#[derive(Clone, Copy)]
pub(crate) enum Before<'e, 'a> {
    Nothing,
    Known(&'e Existing<'a>),
    /// A record that nobody has looked at: see [`older`](crate::older).
    Unread(Place<'a>),
}

impl<'e, 'a> Before<'e, 'a> {
    pub(crate) fn known(self) -> Option<&'e Existing<'a>> {
        match self {
            Before::Known(existing) => Some(existing),
            Before::Nothing | Before::Unread(_) => None,
        }
    }

    /// Whether clients would have seen an item that was read.
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
    /// Two pieces, one after the other.
    Pieces(&'a [u8], &'a [u8]),
    /// Filled in place.
    Large(&'a mut LargeValue),
}

/// How a new version is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// What it may take of a store that is nearly full.
    pub(crate) claim: Claim,
    /// What becomes of the reads of the old version.
    pub(crate) reads: Reads,
}

/// What a new version knows of the reads of the one whose place it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// It is the same value: all of them. The fields are those of the old version, but for what changes.
    Keep,
    /// It is another value: that there were any, which counts as one read for the cleaner, and as none for clients.
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

/// Why nothing was written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NotWritten {
    /// The item is larger than the largest.
    TooLarge,
    /// Memory, or a place in the store, must be reclaimed first for this claim.
    NoSpace(Claim),
    /// What the key's slot leads to must be read from the store first.
    NeedsRead,
    /// Commits fail, and nothing is accepted until they succeed again.
    StoreFailed,
    /// There is no memory, and the value is lost.
    OutOfMemory,
}
