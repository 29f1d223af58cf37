//! The usage table holds the contents of every sealed segment. It sorts the segments by queue, live
//! share and expiry. A query costs about the same however many segments there are. The cost of
//! keeping the table sorted depends only on the number of changes.
//!
//! A thread puts the number of a segment on a list if it makes a record of the segment dead, gives
//! the segment a frame or drops its frame. Before the table answers a query, it examines the
//! segments on that list.
//!
//! The name "usage table" comes from M. Rosenblum, J. Ousterhout, "The design and implementation of
//! a log-structured file system", 1992.

use crate::address::SegmentNumber;
use crate::append::Stream;
use crate::store::places::Tier;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Number of classes. A segment's class is the percentage of its bytes that is alive, rounded up.
const CLASSES: usize = 101;
/// Index of the set of dead jumbos, behind the classes. They are not in class 0, because freeing a
/// jumbo yields no frame.
const DEAD_JUMBOS: usize = CLASSES;
/// The most memory that a segment adds to the table's B-trees, in bytes: half-full nodes in at most
/// four trees.
const TREE_BYTES: usize = 4 * 2 * size_of::<Age>();

/// An end of a stream's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The end that is reclaimed next.
    Front,
    /// The end that is reclaimed last.
    Back,
}

/// The segments that a query covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Among {
    /// All segments.
    All,
    /// Segments with a frame.
    Resident,
}

impl Among {
    fn residencies(self) -> &'static [usize] {
        match self {
            Among::All => &[ABSENT, RESIDENT],
            Among::Resident => &[RESIDENT],
        }
    }
}

/// Array index of the segments without a frame.
const ABSENT: usize = 0;
/// Array index of the segments with a frame.
const RESIDENT: usize = 1;

/// Key that sorts segments by age: the Unix second at which the segment was opened, its place in
/// its queue, and its number.
type Age = (u32, i64, SegmentNumber);

/// Whether a segment can be reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReclaimState {
    /// Not yet. The segment is sealed, but it is not durable, or threads may still fill space that
    /// they reserved in it before.
    Waiting,
    /// The segment can be reclaimed. Only such segments are in the table's queues and classes.
    Ready,
    /// The segment holds unreadable records that must not be lost. It cannot be reclaimed until
    /// none of its records is alive.
    Kept,
}

/// The contents of a segment, as far as the table needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Contents {
    /// Unix seconds at which the segment was opened.
    pub(super) born: u32,
    /// Bytes of all records.
    pub(super) filled: u32,
    /// Bytes of live records.
    pub(super) live: u32,
    /// Bytes of the device gained by emptying the segment: see
    /// [`DurableLog::gain`](crate::DurableLog::gain).
    pub(super) gain: u32,
    /// The earliest expiry of the segment's records, as a Unix second; 0 if no record expires.
    pub(super) min_expiry: u32,
    /// The latest expiry of the segment's records, as a Unix second; 0 if a record never expires.
    pub(super) max_expiry: u32,
    /// Bytes of a jumbo's mapping; 0 for a normal segment.
    pub(super) jumbo: u32,
    pub(super) resident: bool,
}

impl Contents {
    fn class(&self) -> usize {
        let percent = (u64::from(self.live) * 100).div_ceil(u64::from(self.filled.max(1)));
        percent.min(100) as usize
    }

    fn residency(&self) -> usize {
        usize::from(self.resident)
    }
}

/// A segment in the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// The segment's place in the queue of its stream.
    pub(super) order: i64,
    /// The epoch of sealing: see [`Sealed::sealed`](crate::Sealed::sealed).
    pub(super) sealed: u64,
    pub(super) stream: Stream,
    pub(super) tier: Tier,
    pub(super) reclaim_state: ReclaimState,
    pub(super) contents: Contents,
}

impl Row {
    fn age(&self, number: SegmentNumber) -> Age {
        (self.contents.born, self.order, number)
    }
}

/// Sums over all sealed segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentTotals {
    /// Number of segments.
    pub segments: u64,
    /// Live bytes of records.
    pub live: u64,
    /// Live bytes in segments without a frame.
    pub absent_live: u64,
    /// Number of jumbos.
    pub jumbos: u64,
    /// Bytes of the mappings of the jumbos that are in memory.
    pub jumbo_bytes: u64,
}

impl SegmentTotals {
    fn change(&mut self, contents: &Contents, change: impl Fn(&mut u64, u64)) {
        let live = u64::from(contents.live);
        change(&mut self.segments, 1);
        change(&mut self.live, live);
        change(&mut self.absent_live, if contents.resident { 0 } else { live });
        change(&mut self.jumbos, (contents.jumbo != 0).into());
        let mapped = if contents.resident { contents.jumbo } else { 0 };
        change(&mut self.jumbo_bytes, mapped.into());
    }
}

/// A segment that could be cleaned.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// The segment.
    pub segment: SegmentNumber,
    /// The stream in whose queue the segment is.
    pub stream: Stream,
    order: i64,
    /// Unix seconds at which the segment was opened.
    pub born: u32,
    /// Bytes of all records in the segment.
    pub filled: u32,
    /// Bytes of the live records in the segment.
    pub live: u32,
}

impl Candidate {
    /// Returns the rank among candidates that a query finds equally good. The query returns the
    /// candidate with the lowest rank.
    fn place(&self) -> (u8, i64) {
        (self.stream as u8, self.order)
    }
}

/// The table of sealed segments.
#[derive(Debug)]
pub struct UsageTable {
    pub(super) rows: Vec<Option<Row>>,
    /// The values of `order` for the next segments at the front and at the back of a queue.
    pub(super) next: (i64, i64),
    /// Segments that cannot be reclaimed yet, keyed by `Row::order`.
    pub(super) waiting: BTreeMap<i64, SegmentNumber>,
    /// For each stream, a queue of the segments without a frame and a queue of those with a frame.
    pub(super) queues: [[BTreeMap<i64, SegmentNumber>; 2]; 2],
    /// Live bytes in these queues.
    pub(super) live: [[u64; 2]; 2],
    /// For each tier and residency, one set of segments per class. Each set is sorted by age, the
    /// oldest segment first. The set [`DEAD_JUMBOS`] has the dead jumbos; live jumbos are in no
    /// set.
    pub(super) classes: [[Box<[BTreeSet<Age>]>; 2]; 2],
    /// For each class, the bytes of the device that emptying all segments of the class gains. This
    /// is the size of the emptied segments less the space that their live records take elsewhere.
    pub(super) gains: Box<[u64]>,
    /// Bytes that `gains` assumes for the summary of each new segment.
    pub(crate) gain_room: u64,
    /// Segments of each residency, sorted by their latest expiry.
    pub(super) expiring: [BTreeSet<(u32, SegmentNumber)>; 2],
    /// Segments, sorted by a time before which none of their records expires.
    pub(super) first_expiry: BTreeSet<(u32, SegmentNumber)>,
    /// Segments that are being emptied.
    pub(super) cleaning: BTreeSet<SegmentNumber>,
    pub(super) totals: SegmentTotals,
}

impl UsageTable {
    /// Bytes that the table takes per segment.
    pub(crate) const BYTES: usize = size_of::<Option<Row>>() + TREE_BYTES;

    /// Creates an empty table for segments with numbers below `limit`.
    pub(crate) fn new(limit: usize) -> Self {
        let classes = || vec![BTreeSet::new(); CLASSES + 1].into_boxed_slice();
        UsageTable {
            // The kernel provides the memory of a row only when the row is written.
            rows: Vec::with_capacity(limit),
            next: (-1, 0),
            waiting: BTreeMap::new(),
            queues: Default::default(),
            live: Default::default(),
            classes: [[classes(), classes()], [classes(), classes()]],
            gains: vec![0; CLASSES].into_boxed_slice(),
            gain_room: 0,
            expiring: Default::default(),
            first_expiry: BTreeSet::new(),
            cleaning: BTreeSet::new(),
            totals: SegmentTotals::default(),
        }
    }

    pub(super) fn row(&self, number: SegmentNumber) -> Option<&Row> {
        self.rows.get(number as usize)?.as_ref()
    }

    pub(super) fn insert(&mut self, number: SegmentNumber, row: Row) {
        let index = number as usize;
        if self.rows.len() <= index {
            self.rows.resize(index + 1, None);
        }
        debug_assert!(self.rows[index].is_none(), "segment {number} is in two places");
        self.rows[index] = Some(row);
        self.totals.change(&row.contents, |total, more| *total += more);
        match row.reclaim_state {
            ReclaimState::Waiting => drop(self.waiting.insert(row.order, number)),
            ReclaimState::Ready => self.put_in_orders(number, &row),
            ReclaimState::Kept => {}
        }
    }

    pub(super) fn remove(&mut self, number: SegmentNumber) -> Option<Row> {
        let row = self.rows.get_mut(number as usize)?.take()?;
        self.totals.change(&row.contents, |total, less| *total -= less);
        match row.reclaim_state {
            ReclaimState::Waiting => drop(self.waiting.remove(&row.order)),
            ReclaimState::Ready => self.take_out_of_orders(number, &row),
            ReclaimState::Kept => {}
        }
        Some(row)
    }

    fn put_in_orders(&mut self, number: SegmentNumber, row: &Row) {
        let (contents, stream) = (&row.contents, row.stream as usize);
        let residency = contents.residency();
        self.queues[stream][residency].insert(row.order, number);
        self.live[stream][residency] += u64::from(contents.live);
        let class = contents.class();
        self.gains[class] += u64::from(contents.gain);
        if contents.jumbo == 0 || class == 0 {
            let set = if contents.jumbo == 0 { class } else { DEAD_JUMBOS };
            self.classes[row.tier as usize][residency][set].insert(row.age(number));
        }
        if contents.max_expiry != 0 {
            self.expiring[residency].insert((contents.max_expiry, number));
        }
        if contents.min_expiry != 0 {
            self.first_expiry.insert((contents.min_expiry, number));
        }
    }

    fn take_out_of_orders(&mut self, number: SegmentNumber, row: &Row) {
        let (contents, stream) = (&row.contents, row.stream as usize);
        let residency = contents.residency();
        self.queues[stream][residency].remove(&row.order);
        self.live[stream][residency] -= u64::from(contents.live);
        let class = contents.class();
        self.gains[class] -= u64::from(contents.gain);
        let set = if contents.jumbo == 0 { class } else { DEAD_JUMBOS };
        self.classes[row.tier as usize][residency][set].remove(&row.age(number));
        self.expiring[residency].remove(&(contents.max_expiry, number));
        self.first_expiry.remove(&(contents.min_expiry, number));
    }

    /// Replaces the state and contents of a segment in the table if they have changed.
    pub(super) fn update(
        &mut self,
        number: SegmentNumber,
        reclaim_state: ReclaimState,
        contents: Contents,
    ) {
        let same = |row: &Row| row.reclaim_state == reclaim_state && row.contents == contents;
        if self.row(number).is_none_or(same) {
            return;
        }
        if let Some(row) = self.remove(number) {
            self.insert(number, Row { reclaim_state, contents, ..row });
        }
    }

    pub(super) fn order(&mut self, end: End) -> i64 {
        match end {
            End::Front => {
                self.next.0 -= 1;
                self.next.0 + 1
            }
            End::Back => {
                self.next.1 += 1;
                self.next.1 - 1
            }
        }
    }

    /// Returns the oldest segment without live records. Segments on the fast device come before
    /// those on the lower device, and on each device segments without a frame before those with
    /// one.
    pub fn dead(&self, among: Among) -> Option<(Stream, SegmentNumber)> {
        self.dead_of(&[Tier::Fast, Tier::Lower], among)
    }

    /// Like [`UsageTable::dead`], but only on the fast device.
    pub fn dead_on_fast(&self) -> Option<(Stream, SegmentNumber)> {
        self.dead_of(&[Tier::Fast], Among::All)
    }

    fn dead_of(&self, tiers: &[Tier], among: Among) -> Option<(Stream, SegmentNumber)> {
        let oldest = |sets: &[BTreeSet<Age>]| {
            [&sets[0], &sets[DEAD_JUMBOS]].into_iter().filter_map(BTreeSet::first).min().copied()
        };
        let (_, _, number) = self.sets(tiers, among).find_map(oldest)?;
        Some((self.row(number)?.stream, number))
    }

    /// Examines the segments on the fast device that have a frame. Returns the one with the
    /// smallest live share, if that is at most `percent`. Never returns a jumbo.
    pub fn emptiest(&self, percent: usize) -> Option<Candidate> {
        self.candidates(&[Tier::Fast], Among::Resident, 0..=percent).next()
    }

    /// Walks the segments in the order of their latest expiry, then of their number. Returns the
    /// first one behind `after` whose records have all expired at `now`, with its latest expiry.
    pub fn expired(
        &self,
        now: u32,
        among: Among,
        after: (u32, SegmentNumber),
    ) -> Option<(Stream, (u32, SegmentNumber))> {
        let range = (Bound::Excluded(after), Bound::Included((now, SegmentNumber::MAX)));
        if after >= (now, SegmentNumber::MAX) {
            return None;
        }
        let of = |&residency: &usize| self.expiring[residency].range(range).next().copied();
        let first = among.residencies().iter().filter_map(of).min()?;
        Some((self.row(first.1)?.stream, first))
    }

    /// Returns the segments in which a record has expired at `now`, the earliest expiry first.
    pub fn partly_expired(&self, now: u32) -> impl Iterator<Item = (Stream, SegmentNumber)> {
        let due = self.first_expiry.range(..=(now, SegmentNumber::MAX));
        due.filter_map(|&(_, number)| Some((self.row(number)?.stream, number)))
    }

    /// Returns the segment at the front of a stream's queue.
    pub fn oldest(&self, stream: Stream, among: Among) -> Option<SegmentNumber> {
        let first = |&residency: &usize| self.queues[stream as usize][residency].first_key_value();
        among.residencies().iter().filter_map(first).min().map(|(_, &number)| number)
    }

    /// Returns a stream's segments that have a frame, in the queue's order.
    pub fn resident(&self, stream: Stream) -> impl Iterator<Item = SegmentNumber> {
        self.queues[stream as usize][RESIDENT].values().copied()
    }

    /// Returns the first segment behind `place` in a stream's queue that has a frame, and that
    /// segment's place in the queue.
    pub fn resident_behind(&self, stream: Stream, place: i64) -> Option<(i64, SegmentNumber)> {
        let behind = (Bound::Excluded(place), Bound::Unbounded);
        let mut queue = self.queues[stream as usize][RESIDENT].range(behind);
        queue.next().map(|(&place, &number)| (place, number))
    }

    /// Returns the first and the last place of segments with a frame in a stream's queue.
    pub fn resident_places(&self, stream: Stream) -> Option<(i64, i64)> {
        let queue = &self.queues[stream as usize][RESIDENT];
        Some((*queue.first_key_value()?.0, *queue.last_key_value()?.0))
    }

    /// Returns the number of live bytes in those segments of a stream that can be reclaimed.
    pub fn live(&self, stream: Stream, among: Among) -> u64 {
        among.residencies().iter().map(|&residency| self.live[stream as usize][residency]).sum()
    }

    /// Returns the segment with the greatest worth among those with a live share above 0 and at
    /// most `percent`. Examines only the oldest segment of each class, so `worth` must not be
    /// greater for a younger segment of the same class. Never returns a jumbo.
    pub fn best(
        &self,
        tiers: &[Tier],
        among: Among,
        percent: usize,
        worth: impl Fn(&Candidate) -> f64,
    ) -> Option<Candidate> {
        let more = |a: &Candidate, b: &Candidate| {
            worth(a).total_cmp(&worth(b)).then_with(|| b.place().cmp(&a.place()))
        };
        self.candidates(tiers, among, 1..=percent).max_by(more)
    }

    /// Returns the segment on the fast device that was opened first, among those with live records.
    /// Never returns a jumbo.
    pub fn first_on_fast(&self) -> Option<Candidate> {
        let opened = |candidate: &Candidate| (candidate.born, candidate.place());
        self.candidates(&[Tier::Fast], Among::All, 1..=100).min_by_key(opened)
    }

    /// Returns the classes of each tier and residency.
    fn sets(&self, tiers: &[Tier], among: Among) -> impl Iterator<Item = &[BTreeSet<Age>]> {
        tiers.iter().flat_map(move |&tier| {
            let residencies = among.residencies().iter();
            residencies.map(move |&residency| &*self.classes[tier as usize][residency])
        })
    }

    /// Returns the oldest segment of each class in `classes`, for each tier in `tiers` and each
    /// residency that `among` covers.
    fn candidates(
        &self,
        tiers: &[Tier],
        among: Among,
        classes: std::ops::RangeInclusive<usize>,
    ) -> impl Iterator<Item = Candidate> {
        let sets = self.sets(tiers, among);
        let first = sets.flat_map(move |sets| &sets[classes.clone()]).filter_map(BTreeSet::first);
        first.filter_map(|&(born, order, segment)| {
            let Row { stream, contents: Contents { filled, live, .. }, .. } = *self.row(segment)?;
            Some(Candidate { segment, stream, order, born, filled, live })
        })
    }

    /// Returns the number of bytes of the device gained by emptying all segments with a live share
    /// of at most `percent`. Bytes that the moved live records take are already subtracted.
    pub fn gain(&self, percent: usize) -> u64 {
        self.gains[..=percent].iter().sum()
    }

    /// Returns true if some sealed segments cannot be reclaimed yet.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the stream of a segment that can be reclaimed, and `None` for others.
    pub fn ready(&self, number: SegmentNumber) -> Option<Stream> {
        self.row(number)
            .filter(|row| row.reclaim_state == ReclaimState::Ready)
            .map(|row| row.stream)
    }

    /// Returns the sums over all sealed segments.
    pub fn totals(&self) -> SegmentTotals {
        self.totals
    }
}

impl UsageTable {
    pub(super) fn in_order(&self, stream: Option<Stream>) -> Vec<SegmentNumber> {
        let rows = self.rows.iter().enumerate();
        let of_stream = rows.filter_map(|(number, row)| {
            let row =
                row.as_ref().filter(|row| stream.is_none_or(|stream| row.stream == stream))?;
            Some((row.stream as usize, row.order, number as SegmentNumber))
        });
        let mut all: Vec<_> = of_stream.collect();
        all.sort_unstable();
        all.into_iter().map(|(.., number)| number).collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
