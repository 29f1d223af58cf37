//! The tail places. They hold the last block of each stream's open segment while it is incomplete.
//! Larder writes only full blocks to the place of a segment. So no write touches a sector that
//! holds the only copy of durable bytes.

use super::bytes::{put, u32_at, u64_at};
use super::checksum::{Identity, checksum64};
use super::geometry::TAIL_BYTES;
use super::meta::Meta;
use super::segment::{Header, NoSegment};
use super::{BLOCK, STREAMS};
use crate::address::SegmentNumber;

const MAGIC: [u8; 4] = *b"LTAL";
const CHECKSUM: usize = 56;

/// The header of a tail place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The number of the segment's stream.
    pub stream: u8,
    /// The segment that the block belongs to.
    pub segment: SegmentNumber,
    /// The segment's generation.
    pub generation: u32,
    /// Offset of the block in its segment, a multiple of [`BLOCK`].
    pub offset: u32,
    /// The commit that wrote the tail.
    pub commit: u64,
}

impl Tail {
    /// Encodes the tail into all of `into`. `data` is the block's content so far: 1 to [`BLOCK`]
    /// bytes.
    pub fn encode(&self, data: &[u8], identity: &Identity, into: &mut [u8; TAIL_BYTES]) {
        assert!((1..=BLOCK).contains(&data.len()), "a tail is one block at most");
        let (head, place) = into.split_at_mut(BLOCK);
        head.fill(0);
        put(head, 0, MAGIC);
        head[4] = self.stream;
        put(head, 8, identity.store.to_le_bytes());
        put(head, 16, self.segment.to_le_bytes());
        put(head, 20, self.generation.to_le_bytes());
        put(head, 24, self.offset.to_le_bytes());
        put(head, 28, (data.len() as u32).to_le_bytes());
        put(head, 32, self.commit.to_le_bytes());
        let checksum = checksum64(&head[..CHECKSUM], checksum64(data, identity.checksum_seed));
        put(head, CHECKSUM, checksum.to_le_bytes());
        let (filled, rest) = place.split_at_mut(data.len());
        filled.copy_from_slice(data);
        rest.fill(0);
    }

    /// Decodes a tail place. Returns `None` if the place was never written or its last write was
    /// torn.
    pub fn decode<'a>(
        place: &'a [u8; TAIL_BYTES],
        identity: &Identity,
    ) -> Option<(Self, &'a [u8])> {
        let (head, data) = place.split_at(BLOCK);
        let data = data.get(..u32_at(head, 28) as usize)?;
        let checksum = checksum64(&head[..CHECKSUM], checksum64(data, identity.checksum_seed));
        let tail = Tail {
            stream: head[4],
            segment: u32_at(head, 16),
            generation: u32_at(head, 20),
            offset: u32_at(head, 24),
            commit: u64_at(head, 32),
        };
        let good = head[..4] == MAGIC
            && u64_at(head, 8) == identity.store
            && checksum == u64_at(head, CHECKSUM)
            && usize::from(tail.stream) < STREAMS
            && tail.offset.is_multiple_of(BLOCK as u32)
            && !data.is_empty();
        good.then_some((tail, data))
    }

    /// Copies the tail's data over `image`, the bytes read from the segment's place. Returns false
    /// and changes nothing if the data does not fit, or if the header in the image has another
    /// generation than the tail. There is one exception: a tail with offset 0 has its own header,
    /// so it may overwrite an image of an older generation.
    ///
    /// The tails of a stream may be copied over an image in any order. Where they overlap they have
    /// the same bytes, because written bytes do not change within a generation.
    pub fn apply_to(&self, data: &[u8], identity: &Identity, image: &mut [u8]) -> bool {
        let here = Header::decode(image, identity, self.segment).ok();
        let belongs = match here {
            Some(header) if header.generation == self.generation => true,
            Some(header) => self.offset == 0 && header.generation < self.generation,
            None => true,
        };
        let from = self.offset as usize;
        match image.get_mut(from..from + data.len()) {
            Some(room) if belongs => {
                room.copy_from_slice(data);
                true
            }
            _ => false,
        }
    }
}

/// Decodes the header of `segment` from `block`, the first block of its place, after the tails of
/// that block have been applied to it. `readable` is false if the device could not read the block.
/// `meta` is the segment's meta.
///
/// # Errors
/// [`NoSegment::Damaged`] if the block is unreadable or damaged and the tails do not replace it. A
/// tail whose generation is over replaces nothing: the lost header may be of a later generation.
pub fn header_under_tails(
    tails: &[(Tail, Vec<u8>)],
    block: &mut [u8],
    readable: bool,
    identity: &Identity,
    segment: SegmentNumber,
    meta: Option<Meta>,
) -> Result<Header, NoSegment> {
    let own = Header::decode(block, identity, segment);
    let is_lost = !readable || own == Err(NoSegment::Damaged);
    for (tail, data) in tails.iter().filter(|(tail, _)| tail.segment == segment && tail.offset == 0)
    {
        tail.apply_to(data, identity, block);
    }
    match Header::decode(block, identity, segment) {
        Ok(header) if is_lost && meta.is_some_and(|meta| !meta.admits(header.generation)) => {
            Err(NoSegment::Damaged)
        }
        Err(_) if !readable => Err(NoSegment::Damaged),
        header => header,
    }
}
