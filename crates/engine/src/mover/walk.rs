//! Walks over what a lane has of partitions that move: to copy it, or to delete it.

use super::run_length;
use crate::engine::Engine;
use crate::fetch::LaneReads;
use crate::item::ItemHandle;
use crate::lane::session::LaneSession;
use crate::lane::{Lane, lock};
use crate::recovery::StoreError;
use crate::{Key, Outcome};
use larder_log::Address;
use larder_log::format::{PARTITIONS, partition};
use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

/// Items that one step copies or deletes at most.
const CHUNK: usize = 64;
/// Bytes of values that one step copies before it ends.
const CHUNK_BYTES: usize = 1 << 20;

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stepped {
    /// There is more to do.
    On,
    /// It waits for somebody else.
    Waiting,
    /// The phase has ended.
    Done,
    /// It cannot be done now.
    Failed,
}

/// A walk over the items of some stripes of a lane, until none is left that it has not seen. The cleaner
/// gives items other addresses meanwhile, so it looks again when it has come to the end.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// What is to be looked at.
    handles: Vec<ItemHandle>,
    seen: HashSet<(Address, u32)>,
    /// What the chunk at hand waits for.
    reads: Option<LaneReads>,
}

impl Walk {
    /// What the chunk at hand waited for is not wanted any more.
    pub(super) fn forget_reads(&mut self, lane: &LaneSession) {
        self.reads.take().into_iter().for_each(|reads| lane.release(reads));
    }

    /// Deletes a chunk of what a lane has of the partitions.
    pub(super) fn empty(
        &mut self,
        lane: &LaneSession,
        Walked { stripes, shared }: Walked,
        partitions: &Range<usize>,
    ) -> Stepped {
        let whole = stripes.clone();
        self.step(lane, stripes, |handle| {
            lane.give_up_if(handle, &whole, shared, |key| is_of(key, partitions))
        })
    }

    /// Copies a chunk of what a lane has of the partitions to another one.
    pub(super) fn copy(
        &mut self,
        from: &LaneSession,
        to: &LaneSession,
        stripes: Range<usize>,
        partitions: &Range<usize>,
    ) -> Stepped {
        self.step(from, stripes, |handle| {
            if from.is_unreadable(handle) {
                return from.unreadable();
            }
            match from.reopen(handle) {
                Outcome::Ready(Some(item))
                    if is_of(&from.key(item.key()), partitions)
                        && item.is_item()
                        && from.is_item_current(handle, &item)
                        && !item.expiry().is_past(from.now()) =>
                {
                    to.take_in(&item).map(|()| item.record_size())
                }
                other => other.map(|_| 0),
            }
        })
    }

    /// Has `each` look at the next few; it answers how many bytes that was. What it has to wait for it is
    /// asked about again.
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
            let new =
                |handle: &ItemHandle| !self.seen.contains(&(handle.address, handle.generation));
            self.handles = lane.handles(stripes);
            self.handles.retain(new);
            if self.handles.is_empty() {
                self.forget_reads(lane);
                return Stepped::Done;
            }
        }
        self.chunk(lane, each)
    }

    /// Has `each` look at a chunk of the handles.
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
                    self.seen.insert((handle.address, handle.generation));
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
            lane.release(before);
        }
        stepped
    }
}

/// The stripes of a lane that a walk is over.
pub(super) struct Walked {
    stripes: Range<usize>,
    /// The lane owns keys in them that the motion is not about.
    shared: bool,
}

/// The stripes of a lane in which the partitions are.
pub(super) fn walked(engine: &Engine, position: usize, partitions: &Range<usize>) -> Walked {
    let lane = &engine.lanes[position];
    let stripes = lane.stripes(partitions.clone());
    let table = lock(&engine.table);
    let here = lane.number() as u8;
    let per_stripe = run_length(engine);
    let start = partitions.start / per_stripe * per_stripe;
    let end = partitions.end.next_multiple_of(per_stripe).min(PARTITIONS);
    let others = (start..end).filter(|at| !partitions.contains(at));
    let shared = { others }.any(|at| table.owners[at] == here);
    Walked { stripes, shared }
}

/// Deletes what recovery found in a lane of partitions that it does not own, durably, before anybody is
/// served: it may be older than what the partitions' lanes have had. `all`: they may become this lane's
/// at once, as those of lanes that are forgotten do.
pub(crate) fn delete_strays(lane: &Arc<Lane>, all: bool) -> Result<(), StoreError> {
    let strays = std::mem::take(&mut *lock(&lane.strays));
    if strays.is_empty() {
        return Ok(());
    }
    // Memory is filled when clients are served.
    let cold = std::mem::take(&mut *lock(&lane.cold));
    let mut session = lane.session(Waker::noop().clone());
    let (mut walk, mut cleaner) = (Walk::default(), None);
    let stripes = 0..lane.index.stripe_count();
    walk.handles = strays.into_iter().map(|address| session.handle(address)).collect();
    while !walk.handles.is_empty() {
        session.tick(lane.now.load(Ordering::Relaxed));
        let stepped = walk.chunk(&session, |handle| {
            session.give_up_if(handle, &stripes, false, |key| !lane.owns(key.lo))
        });
        session.sleep();
        lane.serve_reads();
        lane.clean(&mut cleaner);
        if !lane.commit() || stepped == Stepped::Failed {
            if !all {
                // They are deleted before their partitions can come back.
                break;
            }
            let why = io::Error::other("what is left of keys that moved away cannot be deleted");
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

/// Whether a key is of one of the partitions.
fn is_of(key: &Key<'_>, partitions: &Range<usize>) -> bool {
    partitions.contains(&partition(key.lo))
}
