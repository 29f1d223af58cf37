//! The table of lanes: which lane owns each partition. Each lane of a store keeps the whole table
//! in its superblock. If the tables differ, the one with the greatest version is valid.

use super::BLOCK;
use super::bytes::{all_zero, put, u16_at, u32_at, u64_at};
use std::fmt;

/// Number of partitions. A key's partition is the top 12 bits of the low half of its hash.
pub const PARTITIONS: usize = 4096;
/// The largest number of lanes in a store.
pub const MAX_LANES: usize = 32;

/// The largest valid version of the table. There can never be that many changes.
const MAX_VERSION: u64 = 1 << 62;
/// Number of bits that encode an owner.
const OWNER_BITS: usize = 5;
const START: usize = 144;
const MEMBERS: usize = 192;
const OWNERS: usize = MEMBERS + MAX_LANES * 8;
const END: usize = OWNERS + PARTITIONS * OWNER_BITS / 8;

const _: () = assert!(1 << OWNER_BITS == MAX_LANES && END <= BLOCK - 8);

/// Returns the partition of a key, from the low half of its hash.
#[inline]
pub fn partition(hash: u64) -> usize {
    (hash >> (u64::BITS - PARTITIONS.trailing_zeros())) as usize
}

/// The number of a lane in its store. A lane keeps its number, also when other lanes are added or
/// removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LaneNumber(pub u8);

impl LaneNumber {
    /// Returns all numbers that a lane can have.
    pub fn all() -> impl Iterator<Item = LaneNumber> {
        (0..MAX_LANES as u8).map(LaneNumber)
    }

    /// Returns the lane's bit in a set of lanes.
    pub fn bit(self) -> u32 {
        1 << self.0
    }

    /// Returns the lane's index in the table.
    pub fn index(self) -> usize {
        self.0.into()
    }
}

impl fmt::Display for LaneNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Partitions that are moving from one lane to another. Until the motion ends, both lanes may hold
/// versions of the same items. Only the versions in the lane that owns the partitions are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Motion {
    /// The number of the first partition.
    pub first: u16,
    /// Number of partitions.
    pub count: u16,
    /// The lane that does not own the partitions: the new lane until the table names it as the
    /// owner, and from then on the old lane. If a start finds the motion, this lane deletes its
    /// versions of the partitions' items.
    pub from: LaneNumber,
}

impl Motion {
    /// Returns the numbers of the partitions.
    pub fn partitions(&self) -> std::ops::Range<usize> {
        usize::from(self.first)..usize::from(self.first) + usize::from(self.count)
    }
}

/// The table of lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes {
    /// Number of changes of the table; 0 for a store that never had more than one lane.
    pub version: u64,
    /// Id of the set of lanes: the low half of the first lane's store id.
    pub set: u64,
    /// The number of the lane whose superblock this is.
    pub here: LaneNumber,
    /// The low half of each lane's store id; 0 for unused numbers.
    pub members: [u64; MAX_LANES],
    /// A bit for each lane that is to be emptied.
    pub draining: u32,
    /// A bit for each lane that has not served clients yet. A crash may have left such a lane
    /// without a superblock on its device.
    pub joining: u32,
    /// The lane that owns each partition.
    pub owners: [LaneNumber; PARTITIONS],
    /// The motion under way, if any; there is one at a time.
    pub motion: Option<Motion>,
}

impl Lanes {
    /// Returns the table of a store with one lane.
    pub fn alone(store_id: u128) -> Self {
        let mut members = [0; MAX_LANES];
        members[0] = store_id as u64;
        Lanes {
            version: 0,
            set: store_id as u64,
            here: LaneNumber(0),
            members,
            draining: 0,
            joining: 0,
            owners: [LaneNumber(0); PARTITIONS],
            motion: None,
        }
    }

    /// Returns true if the store never had more than one lane, so that a program without support
    /// for lanes can read it.
    pub fn is_alone(&self) -> bool {
        self.version == 0
    }

    /// Returns true if a lane is to be emptied.
    pub fn is_draining(&self, lane: LaneNumber) -> bool {
        self.draining & lane.bit() != 0
    }

    /// Returns true if the lane number is in use.
    pub fn is_member(&self, lane: LaneNumber) -> bool {
        self.members.get(lane.index()).is_some_and(|&id| id != 0)
    }

    /// Frees the number of a lane that is no longer part of the store.
    pub fn remove(&mut self, lane: LaneNumber) {
        self.members[lane.index()] = 0;
        self.draining &= !lane.bit();
        self.joining &= !lane.bit();
    }

    /// Returns the number of partitions that a lane owns.
    pub fn owned(&self, lane: LaneNumber) -> usize {
        self.owners.iter().filter(|&&owner| owner == lane).count()
    }

    pub(super) fn encode(&self, into: &mut [u8; BLOCK]) {
        if self.is_alone() {
            return;
        }
        put(into, START, self.version.to_le_bytes());
        put(into, 152, self.set.to_le_bytes());
        into[160] = self.here.0;
        if let Some(Motion { first, count, from }) = self.motion {
            into[161] = from.0;
            put(into, 164, first.to_le_bytes());
            put(into, 166, count.to_le_bytes());
        }
        put(into, 168, self.draining.to_le_bytes());
        put(into, 172, self.joining.to_le_bytes());
        for (lane, id) in self.members.iter().enumerate() {
            put(into, MEMBERS + lane * 8, id.to_le_bytes());
        }
        for (partition, &LaneNumber(owner)) in self.owners.iter().enumerate() {
            let at = partition * OWNER_BITS;
            let bits = u16::from(owner) << (at % 8);
            into[OWNERS + at / 8] |= bits as u8;
            if let Some(next) = into.get_mut(OWNERS + at / 8 + 1) {
                *next |= (bits >> 8) as u8;
            }
        }
    }

    /// Decodes the table. Returns `None` if its values are impossible.
    pub(super) fn decode(copy: &[u8; BLOCK], store_id: u128) -> Option<Self> {
        if all_zero(&copy[START..END]) {
            return Some(Lanes::alone(store_id));
        }
        let mut lanes = Lanes {
            version: u64_at(copy, START),
            set: u64_at(copy, 152),
            here: LaneNumber(copy[160]),
            draining: u32_at(copy, 168),
            joining: u32_at(copy, 172),
            ..Lanes::alone(store_id)
        };
        for (lane, id) in lanes.members.iter_mut().enumerate() {
            *id = u64_at(copy, MEMBERS + lane * 8);
        }
        for (partition, owner) in lanes.owners.iter_mut().enumerate() {
            let at = partition * OWNER_BITS;
            let bits = u16_at(copy, OWNERS + at / 8) >> (at % 8);
            *owner = LaneNumber((bits as usize % MAX_LANES) as u8);
        }
        let (first, count) = (u16_at(copy, 164), u16_at(copy, 166));
        if count > 0 {
            lanes.motion = Some(Motion { first, count, from: LaneNumber(copy[161]) });
        }
        let motion = lanes.motion.is_none_or(|motion| {
            motion.partitions().end <= PARTITIONS && lanes.is_member(motion.from)
        });
        let owned = lanes.owners.iter().all(|&owner| lanes.is_member(owner));
        let version = (1..=MAX_VERSION).contains(&lanes.version);
        (version && lanes.here.index() < MAX_LANES && motion && owned).then_some(lanes)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn table() -> Lanes {
        let mut lanes = Lanes::alone(7);
        (lanes.version, lanes.here) = (3, LaneNumber(5));
        (lanes.draining, lanes.joining) = (1 << 31 | 2, 4);
        (0..MAX_LANES).for_each(|lane| lanes.members[lane] = 100 + lane as u64);
        for (partition, owner) in lanes.owners.iter_mut().enumerate() {
            *owner = LaneNumber((partition * 7 % MAX_LANES) as u8);
        }
        lanes.motion = Some(Motion { first: 4000, count: 96, from: LaneNumber(31) });
        lanes
    }

    #[test]
    fn a_table_reads_back_as_written() {
        for motion in [None, table().motion] {
            let lanes = Lanes { motion, ..table() };
            let mut block = [0; BLOCK];
            lanes.encode(&mut block);
            assert_eq!(Lanes::decode(&block, 9), Some(lanes));
            assert!(all_zero(&block[..START]) && all_zero(&block[END..]));
        }
        let alone = Lanes::alone(7);
        let mut block = [0; BLOCK];
        alone.encode(&mut block);
        assert!(all_zero(&block));
        assert_eq!(Lanes::decode(&block, 7), Some(alone));
    }

    #[test]
    fn an_impossible_table_is_refused() {
        let wrong = [
            Lanes {
                motion: Some(Motion { first: 4000, count: 97, from: LaneNumber(0) }),
                ..table()
            },
            Lanes { motion: Some(Motion { first: 0, count: 1, from: LaneNumber(32) }), ..table() },
            Lanes { members: [0; MAX_LANES], ..table() },
            Lanes { here: LaneNumber(32), ..table() },
            Lanes { version: u64::MAX, ..table() },
        ];
        for lanes in wrong {
            let mut block = [0; BLOCK];
            lanes.encode(&mut block);
            assert_eq!(Lanes::decode(&block, 9), None);
        }
    }

    #[test]
    fn partitions_are_the_top_of_the_hash() {
        assert_eq!((partition(0), partition(u64::MAX)), (0, PARTITIONS - 1));
        assert_eq!(partition(1 << 52), 1);
    }
}
