//! Walks over those items of a lane that belong to moving partitions, and copies or deletes them.

use crate::engine::Engine;
use crate::error::StoreError;
use crate::item::ItemHandle;
use crate::lane::Lane;
use crate::lane::session::LaneSession;
use crate::lock::lock;
use crate::mover::state::Walk;
use crate::{Key, Outcome, Refusal};
use larder_log::format::{PARTITIONS, partition};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

/// The largest number of items per step.
const CHUNK: usize = 64;
/// A step ends once it has copied more than this many bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stepped {
    /// More work is left.
    On,
    /// The step waits for a read or for space.
    Waiting,
    /// The phase has ended.
    Done,
    /// The step failed. The mover gives the motion up, or tries again later.
    Failed,
}

impl Walk {
    /// Drops the reads that items of the last step wait for.
    pub(super) fn forget_reads(&mut self, lane: &LaneSession) {
        self.reads.take().into_iter().for_each(|reads| lane.release(reads, None));
    }

    /// Deletes the next few items that an earlier attempt to move the partitions left in the
    /// target. Fails at an unreadable item: it may be readable after a restart, and the target may
    /// then show it although its key was deleted. If the stripes also hold keys that the target
    /// keeps, the unreadable item may belong to one of those. Then this function fails only if the
    /// lane has noted that unreadable items may belong to keys of other lanes.
    pub(super) fn clear(
        &mut self,
        lane: &LaneSession,
        walked: Walked,
        partitions: &Range<usize>,
    ) -> Stepped {
        let all_readable = !walked.shared || lane.lane.has_unreadable_strays();
        self.delete(lane, walked, partitions, all_readable)
    }

    /// Deletes the next few of the lane's items that belong to the partitions, which another lane
    /// owns.
    pub(super) fn empty(
        &mut self,
        lane: &LaneSession,
        walked: Walked,
        partitions: &Range<usize>,
    ) -> Stepped {
        self.delete(lane, walked, partitions, false)
    }

    /// Deletes the next few of the lane's items that belong to the partitions. With `all_readable`,
    /// fails at an unreadable item.
    fn delete(
        &mut self,
        lane: &LaneSession,
        Walked { stripes, shared }: Walked,
        partitions: &Range<usize>,
        all_readable: bool,
    ) -> Stepped {
        let whole = stripes.clone();
        self.step(lane, stripes, |handle| match all_readable && lane.is_unreadable(handle) {
            true => Outcome::Refused(Refusal::StoreFailed),
            false => {
                lane.give_up_if(handle, &whole, shared, |key| is_of(key, partitions)).map(|()| 0)
            }
        })
    }

    /// Copies the next few items that belong to the partitions from the lane `from` to the lane
    /// `to`.
    pub(super) fn copy(
        &mut self,
        from: &LaneSession,
        to: &LaneSession,
        stripes: Range<usize>,
        partitions: &Range<usize>,
    ) -> Stepped {
        self.step(from, stripes, |handle| {
            if from.must_be_readable(handle) {
                return Outcome::Refused(Refusal::StoreFailed);
            }
            match from.reopen(handle) {
                Outcome::Ready(Some(item))
                    if is_of(&from.key(item.key()), partitions)
                        && item.is_item()
                        && from.is_item_current(handle, &item)
                        && !item.expiry().is_past(from.now()) =>
                {
                    let taken = to.take_in(&item);
                    if matches!(taken, Outcome::NeedsRead | Outcome::NeedsSpace) {
                        from.keep_large(handle);
                    }
                    taken.map(|()| item.record_size())
                }
                other => other.map(|_| 0),
            }
        })
    }

    /// Calls `each` for the next few items. `each` returns the bytes that it copied. Items that
    /// must wait are passed to `each` again later.
    fn step(
        &mut self,
        lane: &LaneSession,
        stripes: Range<usize>,
        each: impl FnMut(ItemHandle) -> Outcome<usize>,
    ) -> Stepped {
        if let Some(reads) = &mut self.reads
            && lane.awaits(reads)
        {
            return Stepped::Waiting;
        }
        if self.handles.is_empty() {
            let new = |handle: &ItemHandle| !self.seen.contains(&handle.id);
            self.handles = lane.handles(stripes);
            self.handles.retain(new);
            if self.handles.is_empty() {
                self.forget_reads(lane);
                return Stepped::Done;
            }
        }
        self.chunk(lane, each)
    }

    /// Calls `each` for at most [`CHUNK`] of the handles.
    fn chunk(
        &mut self,
        lane: &LaneSession,
        mut each: impl FnMut(ItemHandle) -> Outcome<usize>,
    ) -> Stepped {
        let (mut bytes, mut stepped, mut left) = (0, Stepped::On, Vec::new());
        let chunk = self.handles.split_off(self.handles.len().saturating_sub(CHUNK));
        for handle in chunk {
            if bytes > CHUNK_BYTES || stepped == Stepped::Failed {
                left.push(handle);
                continue;
            }
            match each(handle) {
                Outcome::Ready(size) | Outcome::AfterCommit(size, _) => {
                    bytes += size;
                    self.seen.insert(handle.id);
                    continue;
                }
                Outcome::NeedsRead | Outcome::NeedsSpace => stepped = Stepped::Waiting,
                Outcome::Refused(_) => stepped = Stepped::Failed,
            }
            left.push(handle);
        }
        self.handles.append(&mut left);
        let taken = lane.take_reads();
        if let Some(before) = std::mem::replace(&mut self.reads, taken) {
            lane.release(before, self.reads.as_ref());
        }
        stepped
    }
}

/// The stripes of a lane that a walk covers.
pub(super) struct Walked {
    stripes: Range<usize>,
    /// True if the lane owns keys in these stripes that are not part of the motion.
    shared: bool,
}

/// Returns the stripes of a lane that contain the partitions.
pub(super) fn walked(engine: &Engine, position: usize, partitions: &Range<usize>) -> Walked {
    let lane = &engine.lanes[position];
    let stripes = lane.stripes(partitions.clone());
    let table = lock(&engine.table);
    let here = lane.number();
    let per_stripe = run_length(engine);
    let start = partitions.start / per_stripe * per_stripe;
    let end = partitions.end.next_multiple_of(per_stripe).min(PARTITIONS);
    let others = (start..end).filter(|at| !partitions.contains(at));
    let shared = { others }.any(|at| table.owners[at] == here);
    Walked { stripes, shared }
}

/// Durably deletes the lane's strays before any client is served. Strays are items that recovery
/// found in a lane that does not own their partitions. The owner may have a newer version of such
/// an item, so clients must never see a stray. With `all`, fails if a stray cannot be deleted.
/// Otherwise leaves the rest to the mover. The caller sets `all` if a lost lane is forgotten and
/// its partitions are given away: this lane may then own the partitions of its strays as soon as
/// clients are served.
pub(crate) fn delete_strays(lane: &Arc<Lane>, all: bool) -> Result<(), StoreError> {
    let strays = std::mem::take(&mut *lock(&lane.strays));
    if strays.is_empty() {
        return Ok(());
    }
    // Keeps the cleaner from reading segments into memory now. The cleaner reads them later, while
    // clients are served.
    let cold = std::mem::take(&mut *lock(&lane.cold));
    let mut session = lane.session(Waker::noop().clone());
    let (mut walk, mut cleaner) = (Walk::default(), None);
    let stripes = 0..lane.index.stripe_count();
    walk.handles = strays.into_iter().map(|address| session.handle(address)).collect();
    while !walk.handles.is_empty() {
        session.tick(lane.now.load(Ordering::Relaxed));
        let stepped = walk.chunk(&session, |handle| match session.must_be_readable(handle) {
            true => Outcome::Refused(Refusal::StoreFailed),
            false => {
                session.give_up_if(handle, &stripes, false, |key| !lane.owns(key.lo)).map(|()| 0)
            }
        });
        session.sleep();
        lane.serve_reads();
        lane.clean(&mut cleaner);
        if !lane.commit() || stepped == Stepped::Failed {
            if !all {
                // The mover deletes the remaining strays before this lane may own their partitions.
                if walk.handles.iter().any(|&handle| session.is_unreadable(handle)) {
                    lane.note_unreadable_strays();
                }
                break;
            }
            let why = io::Error::other("leftover items of keys in other lanes cannot be deleted");
            return Err(StoreError::Device(why));
        }
    }
    walk.forget_reads(&session);
    if let Some(mut cleaner) = cleaner {
        cleaner.abandon_maps(lane);
    }
    *lock(&lane.cold) = cold;
    Ok(())
}

/// Returns true if a key is in one of the partitions.
fn is_of(key: &Key<'_>, partitions: &Range<usize>) -> bool {
    partitions.contains(&partition(key.lo))
}

/// Returns the number of partitions that share a stripe.
pub(super) fn run_length(engine: &Engine) -> usize {
    (PARTITIONS / engine.lanes[0].index.stripe_count()).max(1)
}
