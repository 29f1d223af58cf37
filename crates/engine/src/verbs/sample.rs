//! Random samples of all items, for statistics: each item is equally likely in each draw.
//!
//! Slots lead to items, so a draw picks a slot. Stripes have tables of different lengths. A draw
//! picks a stripe and the number of a slot of the longest table. If the stripe's table is shorter
//! or the slot is empty, the draw has no result. So every slot of every table is equally likely.
//!
//! Records that are only on a device are read through the session's [fetched
//! records](crate::reads), whose memory is limited. Such reads create no copies and do not count as
//! reads of the items.

use crate::lane::session::LaneSession;
use crate::stats::bump;
use crate::{Listed, Session};
use larder_disk::Random;
use larder_log::Kind;
use larder_log::format::partition;

/// Number of draws per wanted item after which a call ends. Without this limit, a call would take
/// too long when most slots are empty.
const DRAWS: usize = 32;
/// The largest number of times that a drawn slot waits for a read of its record.
const TRIES: u8 = 4;
/// Number of draws after which the length of the longest table is determined again.
const FRESH: u32 = 1 << 16;

/// The state of a sample. Dropping it ends the sample.
#[derive(Debug)]
pub struct ItemSampler {
    random: Random,
    /// Number of slots of the longest table.
    longest: u64,
    /// Number of draws since `longest` was determined.
    draws: u32,
    /// Drawn slots whose records are being read.
    waiting: Vec<Drawn>,
    expired: u64,
    unreadable: u64,
}

/// A drawn slot.
#[derive(Clone, Copy, Debug)]
struct Drawn {
    /// The position of the lane among the engine's lanes.
    lane: usize,
    stripe: usize,
    number: usize,
    tries: u8,
}

/// What became of a drawn slot.
enum DrawResult {
    /// The slot leads to no item of this lane.
    Nothing,
    /// The slot's item was passed to the caller.
    Shown,
    /// The slot's item has expired but was not removed yet.
    Expired,
    /// The slot's record must be read.
    NeedsRead,
    /// The slot's record cannot be read.
    Unreadable,
}

impl ItemSampler {
    /// Begins a sample that `seed` determines.
    pub fn new(seed: u64) -> ItemSampler {
        let (random, waiting) = (Random::new(seed), Vec::new());
        ItemSampler { random, longest: 0, draws: FRESH, waiting, expired: 0, unreadable: 0 }
    }

    /// Returns the number of draws so far that led to an expired item that was not removed yet. The
    /// number of items of the engine includes such items.
    pub fn expired(&self) -> u64 {
        self.expired
    }

    /// Returns the number of drawn items omitted so far because they could not be read.
    pub fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// Draws a slot of one of `lanes`. Returns `None` if the drawn stripe has no slot with the
    /// drawn number.
    fn draw(&mut self, lanes: &[LaneSession]) -> Option<Drawn> {
        self.draws += 1;
        if self.draws > FRESH {
            self.draws = 0;
            let indexes = lanes.iter().map(|lane| &lane.lane.index);
            let lengths =
                indexes.flat_map(|index| (0..index.stripe_count()).map(|at| index.table_slots(at)));
            self.longest = lengths.max().unwrap_or(0) as u64;
        }
        let stripes: usize = lanes.iter().map(|lane| lane.lane.index.stripe_count()).sum();
        let mut stripe = self.random.below(stripes as u64) as usize;
        let lane = lanes.iter().position(|lane| {
            let count = lane.lane.index.stripe_count();
            let is_here = stripe < count;
            stripe -= if is_here { 0 } else { count };
            is_here
        })?;
        let len = lanes[lane].lane.index.table_slots(stripe) as u64;
        self.longest = self.longest.max(len);
        if self.longest == 0 {
            return None;
        }
        let number = self.random.below(self.longest);
        (number < len).then_some(Drawn { lane, stripe, number: number as usize, tries: 0 })
    }
}

impl Session {
    /// Draws slots at random until they have led to `items` items, and shows the live ones. Each
    /// item is equally likely in each draw; one that is drawn twice is shown twice. Items that have
    /// expired or cannot be read are counted instead. Draws of empty slots show nothing, and their
    /// number is limited. Showing an item does not count as a read.
    ///
    /// Ends early when `reads` items have to be read from a device first. They are shown by a later
    /// call, which the caller makes after these [reads](Session::take_reads) have arrived. Returns
    /// the number of items that wait for reads.
    ///
    /// If the caller makes that call earlier, it gives up the reads that have not arrived, and
    /// their items count as unreadable. Until those reads arrive, every other item that must be
    /// read from the same device counts as unreadable, too. This limits the number of reads that
    /// wait for a device that does not answer.
    ///
    /// Unlike other answers, shown items may not be durable yet: a crash may revert them.
    pub fn sample(
        &self,
        sampler: &mut ItemSampler,
        items: usize,
        reads: usize,
        visit: &mut dyn FnMut(Listed<'_>),
    ) -> usize {
        for drawn in std::mem::take(&mut sampler.waiting) {
            self.look_at(sampler, drawn, visit);
        }
        let mut seen = 0;
        for _ in 0..items.saturating_mul(DRAWS) {
            if seen >= items || sampler.waiting.len() >= reads {
                break;
            }
            if let Some(drawn) = sampler.draw(&self.lanes) {
                seen += usize::from(self.look_at(sampler, drawn, visit));
            }
        }
        for lane in &self.lanes {
            // Forgets the commits that the shown items depend on, because a sample waits for no
            // commit.
            let _ = lane.answer(());
        }
        sampler.waiting.len()
    }

    /// Looks at a drawn slot. Returns true if the draw is complete: it found an item, visible or
    /// expired, or one that cannot be read. Returns false if the slot leads to no item, or if the
    /// draw waits for a read.
    fn look_at(
        &self,
        sampler: &mut ItemSampler,
        drawn: Drawn,
        visit: &mut dyn FnMut(Listed<'_>),
    ) -> bool {
        let partitions = &self.engine.partitions;
        // A key in motion may be in two lanes. Only the lane that owns its partition shows the
        // item.
        let is_own = |key: &[u8]| {
            partitions.never_move() || partitions.owner(partition(self.key(key).lo)) == drawn.lane
        };
        match self.lanes[drawn.lane].look_at(drawn, &is_own, visit) {
            DrawResult::Nothing => return false,
            DrawResult::NeedsRead if drawn.tries < TRIES => {
                sampler.waiting.push(Drawn { tries: drawn.tries + 1, ..drawn });
                return false;
            }
            DrawResult::Shown => {}
            DrawResult::Expired => sampler.expired += 1,
            DrawResult::NeedsRead | DrawResult::Unreadable => sampler.unreadable += 1,
        }
        true
    }
}

impl LaneSession {
    /// Shows the item of a drawn slot, or requests the read of its record. The slot may lead to
    /// another item than when it was drawn. This is as good, because the draw chose the slot and
    /// not the item.
    fn look_at(
        &self,
        drawn: Drawn,
        is_own: &dyn Fn(&[u8]) -> bool,
        visit: &mut dyn FnMut(Listed<'_>),
    ) -> DrawResult {
        // SAFETY: a session is awake while its calls are made.
        let slot = unsafe { self.lane.index.slot_at(drawn.stripe, drawn.number) };
        let Some(slot) = slot else { return DrawResult::Nothing };
        if let Some(record) = self.listed(slot) {
            let is_item = record.kind() != Kind::Tombstone && is_own(record.key());
            if !is_item || !self.is_current(slot, &record) {
                return DrawResult::Nothing;
            }
            let mut result = DrawResult::Expired;
            self.show(slot, record, &mut |item| {
                result = DrawResult::Shown;
                visit(item);
            });
            return result;
        }
        let id = self.read_from(slot);
        let is_late = drawn.tries > 0 && self.fetched.expects(id);
        if is_late || self.fetched.is_unreadable(id) || self.fetched.expects_unneeded() {
            return DrawResult::Unreadable;
        }
        if drawn.tries < TRIES && self.request(id) {
            bump(&self.counters.sample_reads, 1);
        }
        DrawResult::NeedsRead
    }
}
