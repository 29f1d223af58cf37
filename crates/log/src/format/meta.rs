//! A segment's meta: those facts about a segment that may change after the segment's bytes were
//! written. A meta has two copies. Each write goes to the copy with the older version, so a torn
//! write leaves the newer one.

use super::BLOCK;
use super::bytes::{all_zero, put, u32_at, u64_at};
use super::checksum::{Identity, checksum64};
use super::geometry::META_HEADER;
use crate::address::SegmentNumber;

const MAGIC: [u8; 4] = *b"LMET";
const CHECKSUM: usize = META_HEADER - 8;
const HAS_MAP: u8 = 1;

/// The use of a segment number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Free: recovery ignores the records of all generations up to the meta's generation.
    Free,
    /// Never used again, because a part of its place, or a copy of its meta, cannot be read.
    /// Recovery ignores the records of every generation.
    Retired,
    /// A segment.
    InUse {
        /// Offset at which the segment ends. Recovery ignores the bytes behind it. 0 if the segment
        /// is still open, or ends at the trailer that seals it.
        end: u32,
    },
    /// A piece of a jumbo.
    Part {
        /// The jumbo's number.
        owner: SegmentNumber,
        /// The jumbo's generation.
        owner_generation: u32,
        /// Index of the piece. Piece 0 lies in the place of `owner`.
        index: u32,
    },
}

/// A segment's meta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// The number of this write of the meta: 1 for the first, and one more for each later write.
    pub version: u64,
    /// A commit number. The dead map, which follows the meta, marks every record of the segment
    /// that was superseded by this commit or an earlier one. In the meta of a [`Use::Part`], the
    /// commit that wrote the jumbo.
    pub cover: u64,
    /// The generation that the meta describes.
    pub generation: u32,
    /// The purpose that the segment number serves in this generation.
    pub usage: Use,
}

/// Why a copy of a meta is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaError {
    /// The copy was never written by this store.
    Absent,
    /// The copy was torn when it was written, or was damaged later.
    Damaged,
}

impl Meta {
    /// Returns the index of the copy to which this meta is written: 0 or 1.
    pub fn copy(&self) -> usize {
        (self.version % 2) as usize
    }

    /// Returns true if the records of a segment whose header names `generation` may still be valid.
    pub fn admits(&self, generation: u32) -> bool {
        generation > self.over()
    }

    /// Returns the greatest generation of which no record in the segment's place is valid any more.
    /// No record of an earlier generation is, either.
    pub fn over(&self) -> u32 {
        match self.usage {
            Use::InUse { .. } => self.generation.saturating_sub(1),
            Use::Free | Use::Part { .. } => self.generation,
            Use::Retired => u32::MAX,
        }
    }

    /// Returns true if the meta's map and end describe `generation`.
    pub fn describes(&self, generation: u32) -> bool {
        matches!(self.usage, Use::InUse { .. }) && generation == self.generation
    }

    /// Returns true if the first block of a copy says that a map follows.
    pub fn has_map(block: &[u8]) -> bool {
        block[37] & HAS_MAP != 0
    }

    /// Returns the version from the first block of a copy, for a copy whose map cannot be read. The
    /// version is unchecked, because the checksum also covers the map.
    pub fn version(block: &[u8]) -> u64 {
        u64_at(block, 16)
    }

    /// Returns the length of an encoded meta with its map, in bytes: a multiple of a block. The map
    /// has `map` bytes; 0 without a map.
    pub fn encoded_bytes(map: usize) -> usize {
        (META_HEADER + map).next_multiple_of(BLOCK)
    }

    /// Encodes the meta into all of `into`, which is [`Meta::encoded_bytes`] long. With a map,
    /// `into` begins with 64 bytes of any content, followed by the map: see [`map_in`].
    pub fn encode(&self, segment: SegmentNumber, map: usize, identity: &Identity, into: &mut [u8]) {
        assert_eq!(into.len(), Self::encoded_bytes(map));
        let (head, rest) = into.split_at_mut(META_HEADER);
        let (map, padding) = rest.split_at_mut(map);
        padding.fill(0);
        head.fill(0);
        put(head, 0, MAGIC);
        put(head, 4, segment.to_le_bytes());
        put(head, 8, identity.store.to_le_bytes());
        put(head, 16, self.version.to_le_bytes());
        put(head, 24, self.cover.to_le_bytes());
        put(head, 32, self.generation.to_le_bytes());
        head[37] = if map.is_empty() { 0 } else { HAS_MAP };
        head[36] = match self.usage {
            Use::Free => 1,
            Use::Retired => 4,
            Use::InUse { end } => {
                put(head, 52, end.to_le_bytes());
                2
            }
            Use::Part { owner, owner_generation, index } => {
                put(head, 40, owner.to_le_bytes());
                put(head, 44, owner_generation.to_le_bytes());
                put(head, 48, index.to_le_bytes());
                3
            }
        };
        let checksum = checksum64(&head[..CHECKSUM], checksum64(map, identity.checksum_seed));
        put(head, CHECKSUM, checksum.to_le_bytes());
    }

    /// Decodes one copy of the meta of `segment`. Returns the meta and its map. A map has
    /// `map_bytes`; without a map, the returned slice is empty.
    pub fn decode<'a>(
        copy: &'a [u8],
        segment: SegmentNumber,
        map_bytes: usize,
        identity: &Identity,
    ) -> Result<(Self, &'a [u8]), MetaError> {
        let Some((head, rest)) = copy.split_first_chunk::<META_HEADER>() else {
            return Err(MetaError::Absent);
        };
        if all_zero(head) || !identity.nearly(u64_at(head, 8)) {
            return Err(MetaError::Absent);
        }
        let map = if Self::has_map(head) { map_bytes } else { 0 };
        let map = rest.get(..map).ok_or(MetaError::Damaged)?;
        let checksum = checksum64(&head[..CHECKSUM], checksum64(map, identity.checksum_seed));
        if checksum != u64_at(head, CHECKSUM) {
            return Err(MetaError::Damaged);
        }
        let usage = match head[36] {
            1 => Use::Free,
            2 => Use::InUse { end: u32_at(head, 52) },
            3 => Use::Part {
                owner: u32_at(head, 40),
                owner_generation: u32_at(head, 44),
                index: u32_at(head, 48),
            },
            4 => Use::Retired,
            _ => return Err(MetaError::Damaged),
        };
        if head[..4] != MAGIC || u64_at(head, 8) != identity.store || u32_at(head, 4) != segment {
            return Err(MetaError::Damaged);
        }
        let meta = Meta {
            version: u64_at(head, 16),
            cover: u64_at(head, 24),
            generation: u32_at(head, 32),
            usage,
        };
        Ok((meta, map))
    }
}

/// The result of reading both copies of a meta.
#[derive(Clone, Copy, Debug)]
pub struct Chosen<'a> {
    /// The newer whole copy with its map; `None` if no copy is whole.
    pub meta: Option<(Meta, &'a [u8])>,
    /// True if a copy is damaged, by a torn write or later.
    pub damaged: bool,
    /// True if both copies are damaged. A torn write damages only the older copy, so a durable meta
    /// is lost.
    pub lost: bool,
}

impl Chosen<'_> {
    /// Returns true if an unreadable copy may be newer than the chosen one. `unread` is the
    /// greatest version that an unreadable copy may have; `None` if both copies are readable.
    pub fn may_be_older_than(&self, unread: Option<u64>) -> bool {
        unread.is_some_and(|unread| self.meta.is_none_or(|(meta, _)| meta.version < unread))
    }
}

/// Chooses the newer of the two copies of the meta of `segment` that are not damaged.
pub fn choose<'a>(
    copies: [&'a [u8]; 2],
    segment: SegmentNumber,
    map_bytes: usize,
    identity: &Identity,
) -> Chosen<'a> {
    let copies = copies.map(|copy| Meta::decode(copy, segment, map_bytes, identity));
    let is_damaged = |copy: &Result<_, MetaError>| matches!(copy, Err(MetaError::Damaged));
    let (damaged, lost) = (copies.iter().any(is_damaged), copies.iter().all(is_damaged));
    let meta = copies.into_iter().flatten().max_by_key(|(meta, _)| meta.version);
    Chosen { meta, damaged, lost }
}

/// Returns the map's part of a buffer for [`Meta::encode`].
pub fn map_in(buffer: &mut [u8], map_bytes: usize) -> &mut [u8] {
    &mut buffer[META_HEADER..META_HEADER + map_bytes]
}

/// Bytes of a segment that share a bit of its dead map. A record is at least this long, so no two
/// records share a bit.
pub const MAP_UNIT: usize = 16;

/// Marks the record that begins at `offset` of the segment as dead.
pub fn mark(map: &mut [u8], offset: usize) {
    map[offset / MAP_UNIT / 8] |= 1 << (offset / MAP_UNIT % 8);
}

/// Clears the mark of the record that begins at `offset` of the segment.
pub fn unmark(map: &mut [u8], offset: usize) {
    map[offset / MAP_UNIT / 8] &= !(1 << (offset / MAP_UNIT % 8));
}

/// Returns true if the record that begins at `offset` is marked. An empty map marks none.
pub fn is_marked(map: &[u8], offset: usize) -> bool {
    let byte = map.get(offset / MAP_UNIT / 8);
    byte.is_some_and(|byte| byte & 1 << (offset / MAP_UNIT % 8) != 0)
}
