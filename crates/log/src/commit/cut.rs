//! Handling of commits that could not be made durable. The streams are cut at their durable ends
//! and continue in other segments, so the failed commit's pages in the page cache are never
//! trusted.

use crate::address::SegmentNumber;
use crate::append::{Sealed, Stream};
use crate::commit::committer::Cut;
use crate::commit::{Closed, Committer, Written};
use crate::format::geometry::SUPERBLOCKS;
use crate::format::segment::HEADER_BYTES;
use crate::format::{BLOCK, Use};
use crate::log::DurableLog;
use crate::reclaim::usage::End;
use crate::segment::State;
use crate::sync::lock;
use std::io;
use std::sync::atomic::Ordering;

impl DurableLog<'_> {
    /// Gives up the commits `closed`. Their changes must have been undone, so that nothing in the
    /// index leads to their records. No thread may be appending, and no other commit may be closed
    /// but not settled.
    pub fn fail_commits(self, committer: &mut Committer, closed: &[Closed]) {
        committer.forget_writes();
        for commit in closed {
            for number in commit.segments() {
                self.cut(committer, number);
            }
        }
        lock(&self.store.closed).clear();
        self.restore_quarantined(self.store.commits.settled());
        self.store.commits.end_undo();
        closed.iter().for_each(|commit| self.store.commits.settle_failed(commit.number));
    }

    /// Seals a segment at its durable end.
    fn cut(self, committer: &mut Committer, number: SegmentNumber) {
        let segment = self.segment(number);
        let durable = segment.durable();
        let entry = self.store.entry(number);
        entry.sealed.store(true, Ordering::Release);
        entry.cutting.store(true, Ordering::Release);
        entry.end.store(durable.max(HEADER_BYTES as u32), Ordering::Relaxed);
        self.release_ends_of(number);
        segment.cut(durable);
        if segment.is_jumbo() {
            // The whole jumbo is cut, and its meta will say that the place is free. A dead map
            // would say that the segment is in use.
            self.store.settle_free(number);
        }
        self.note_changed(number);
        let cut = Cut { segment: number, generation: segment.generation(), durable };
        committer.cuts.retain(|other| other.segment != number);
        committer.cuts.push(cut);
    }

    /// Restores the segments in quarantine that were emptied by a commit after `durable`. That
    /// commit was undone, so the segments hold live records again.
    fn restore_quarantined(self, durable: u64) {
        let mut quarantine = lock(&self.quarantine);
        // Examines only segments without a durable free mark. A segment with such a mark was
        // emptied by a durable commit.
        for entry in quarantine.take_undone(|entry| entry.emptied > durable) {
            let segment = self.segment(entry.number);
            // The kept ends are noted before the segment is sealed again. If a sealed segment has
            // no kept ends, the engine's mover of partitions assumes that all evictions from this
            // segment are durable.
            self.store.keep_ends(entry.number, entry.ends);
            segment.set_state(State::Sealed);
            self.end_evicting();
            let sealed = Sealed { segment: entry.number, sealed: 0 };
            self.enqueue(Stream::of(segment.stream()), sealed, End::Front);
        }
    }

    /// Writes each cut segment's last block, and a meta that says where the segment ends. A cut
    /// jumbo has no durable bytes, so its meta says that the place holds no segment.
    pub(crate) fn write_cuts(self, committer: &Committer, written: &mut Written) -> io::Result<()> {
        for cut in &committer.cuts {
            let segment = self.segment(cut.segment);
            if segment.generation() != cut.generation {
                continue;
            }
            let entry = self.store.entry(cut.segment);
            if segment.is_jumbo() {
                let unused = self.store.unused(cut.segment);
                self.write_meta(written, cut.segment, unused, 0, None)?;
                continue;
            }
            let usage = Use::InUse { end: entry.end.load(Ordering::Relaxed) };
            let cover = entry.cover.load(Ordering::Relaxed);
            let dead = committer.last_map(cut.segment, cut.generation);
            self.write_meta(written, cut.segment, usage, cover, dead)?;
            let first = cut.durable as usize / BLOCK * BLOCK;
            if first == cut.durable as usize {
                continue;
            }
            let frame = self.undurable_frame(cut.segment);
            let mut block = [0; BLOCK];
            let len = cut.durable as usize - first;
            // SAFETY: below its durable end a segment never changes, and its frame stays while the
            // cut is not written.
            let kept = unsafe { std::slice::from_raw_parts(frame.add(first), len) };
            block[..len].copy_from_slice(kept);
            let place = self.store.geometry.segment(cut.segment) + first as u64;
            self.store.write(place, &block)?;
        }
        Ok(())
    }

    /// Checks after a failure that the device works again. Reads the superblock back from the
    /// device, not from the page cache.
    ///
    /// # Errors
    /// Those of the device, or an error if it returns other bytes than were written.
    pub fn verify_device(self) -> io::Result<()> {
        let superblock = self.store.superblock();
        let (mut written, mut read) = ([0; BLOCK], [0; BLOCK]);
        superblock.encode(&mut written);
        let answered = self.store.device.read_stored(SUPERBLOCKS[superblock.copy()], &mut read);
        let lost = || io::Error::other("the device returns other bytes than were written to it");
        let verified = answered.and_then(|()| (read == written).then_some(()).ok_or_else(lost));
        // The block of this superblock copy may be bad. This empty change makes the next commit
        // write the other copy.
        verified.inspect_err(|_| self.store.change_superblock(|_| {}))
    }
}
