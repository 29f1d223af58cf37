//! What a commit writes beside records so that segments can be freed: dead maps, and free marks.
//!
//! A segment with *ends* hides older versions that are not marked as dead where they lie. It is freed
//! only when every segment that could hold one is *covered*: its durable dead map is new enough.

use crate::address::SegmentNumber;
use crate::commit::{Committer, Written};
use crate::format::Use;
use crate::log::{Log, lock};
use crate::rule::Rule;
use crate::segment::State;
use crate::store::Store;
use std::io;
use std::sync::atomic::Ordering;

/// A dead map that waits until what it says is durable.
#[derive(Debug)]
pub struct DeadMap {
    /// The segment.
    pub segment: SegmentNumber,
    /// Its use that the map was made for.
    pub generation: u32,
    /// Every record that was dead after this commit is in the map.
    pub cover: u64,
    /// Nothing in the map is newer than this commit.
    pub after: u64,
    /// [`Store::undoings`] before the map was made: what it says may have been undone since.
    pub undoings: u64,
    /// One bit per 16 bytes of the segment: see [`crate::format::meta::mark`].
    pub bits: Vec<u8>,
}

impl Log {
    pub(crate) fn write_maps(
        &self,
        store: &Store,
        committer: &mut Committer,
        written: &mut Written,
    ) -> io::Result<()> {
        let durable = store.durable_commit();
        for map in std::mem::take(&mut committer.maps) {
            // A map says that its segment is in use, which must not undo a free mark.
            let outdated = self.is_marked_free(map.segment)
                || self.segment(map.segment).generation() != map.generation
                || map.undoings != store.undoings();
            if outdated {
                continue;
            }
            if map.after > durable {
                committer.maps.push(map);
                continue;
            }
            let bits = Some(&map.bits[..]);
            let end = store.entry(map.segment).end.load(Ordering::Relaxed);
            self.write_meta(store, written, map.segment, Use::InUse { end }, map.cover, bits)?;
            written.covered.push((map.segment, map.generation, map.cover));
        }
        Ok(())
    }

    /// Whether the device knows that the segment's last use is over.
    fn is_marked_free(&self, number: SegmentNumber) -> bool {
        let quarantine = lock(&self.quarantine);
        match quarantine.iter().find(|waiting| waiting.number == number) {
            Some(waiting) => waiting.marked,
            // In quarantine and not on its list: on its way out.
            None => matches!(self.segment(number).state(), State::Free | State::Quarantine),
        }
    }

    pub(crate) fn write_free_marks(&self, store: &Store, written: &mut Written) -> io::Result<()> {
        for number in self.freeable(store) {
            for part in store.parts(number).into_iter().chain([number]) {
                self.write_meta(store, written, part, Use::Free, 0, None)?;
            }
            written.freed.push(number);
        }
        Ok(())
    }

    /// Segments whose records nobody needs any more, in the order in which they were emptied.
    pub(crate) fn freeable(&self, store: &Store) -> Vec<SegmentNumber> {
        let durable = store.durable_commit();
        let mut freeable = Vec::new();
        for first in lock(&self.quarantine).iter().filter(|first| !first.marked) {
            let last_commit = store.entry(first.number).last_commit.load(Ordering::Relaxed);
            let ends = self.segment(first.number).has_ends() || !first.ends.is_empty();
            let superseded = first.emptied <= durable || Rule::FreeWhenDurable.is_broken();
            let needs_cover = ends && !Rule::EndsAreCovered.is_broken();
            if !superseded || needs_cover && !self.covered(store, first.number, last_commit) {
                break;
            }
            freeable.push(first.number);
        }
        freeable
    }

    /// Whether no other segment could bring back a version older than `commit`.
    fn covered(&self, store: &Store, except: SegmentNumber, commit: u64) -> bool {
        let all = self.numbers().all(|number| {
            number == except || !self.may_hide(number) || store.cover(number) >= commit
        });
        if !all {
            store.cover_wanted.fetch_max(commit, Ordering::Relaxed);
        }
        all
    }

    /// Segments whose dead maps are older than what is needed to free others, and how new they must
    /// be.
    pub fn wanted_maps(&self) -> Vec<SegmentNumber> {
        let Some(store) = &self.store else { return Vec::new() };
        let wanted = store.cover_wanted.load(Ordering::Relaxed);
        let older = |&number: &SegmentNumber| self.may_hide(number) && store.cover(number) < wanted;
        self.numbers().filter(older).collect()
    }

    /// Whether a crash could bring records of the segment back: what is not durable at all holds
    /// nothing that is older than what is.
    fn may_hide(&self, number: SegmentNumber) -> bool {
        let segment = self.segment(number);
        segment.is_in_use() && segment.durable() > 0
    }
}
