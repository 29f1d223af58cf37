//! Reads a store's structures from its device. `larder_log::format` interprets the bytes; this file
//! knows where they are and handles blocks that cannot be read.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;

use larder_disk::Device;
use larder_log::SegmentNumber;
use larder_log::format::geometry::{SUPERBLOCKS, TAIL_BYTES, TAIL_PLACES};
use larder_log::format::jumbo::Jumbo;
use larder_log::format::{
    BLOCK, Header, Identity, Meta, NoSegment, STREAMS, SegmentSeed, Superblock, SuperblockError,
    Tail, Trailer, ValueHasher, header_under_tails, meta, superblock,
};

/// A store on a device.
pub(super) struct Store<'a> {
    device: &'a dyn Device,
    /// Offsets of unreadable blocks.
    unreadable: RefCell<BTreeSet<u64>>,
    pub(super) superblock: Superblock,
    pub(super) identity: Identity,
    /// The state of each copy of the superblock.
    pub(super) copies: [superblock::Copy; 2],
    pub(super) tails: Vec<(Tail, Vec<u8>)>,
    /// Tail places that cannot be read, as (offset on the device, number of the place).
    pub(super) lost_tails: Vec<(u64, u32)>,
}

/// The reason why a store cannot be inspected.
#[derive(Debug)]
pub(in crate::check) enum Unusable {
    Superblock(SuperblockError),
    Read(io::Error),
}

/// A segment's meta with its dead map.
#[derive(Debug, Default)]
pub(super) struct Marks {
    pub(super) meta: Option<Meta>,
    pub(super) map: Vec<u8>,
    /// True if a copy of the meta is damaged.
    pub(super) damaged: bool,
    /// True if a copy of the meta cannot be read and may be the newer one, or if both copies are
    /// damaged.
    pub(super) unreadable: bool,
}

impl<'a> Store<'a> {
    /// Reads the superblock and the tails.
    pub(super) fn open(device: &'a dyn Device) -> Result<Store<'a>, Unusable> {
        let mut copies = [[0; BLOCK]; 2];
        let mut unreadable = BTreeSet::new();
        for (copy, at) in copies.iter_mut().zip(SUPERBLOCKS) {
            if let Err(error) = device.read_at(at, copy) {
                // Fills in a copy without valid contents, which `superblock::choose` takes for a
                // damaged copy. The check then needs the other copy.
                *copy = superblock::mark();
                unreadable.insert(at);
                if unreadable.len() == SUPERBLOCKS.len() {
                    return Err(Unusable::Read(error));
                }
            }
        }
        let (superblock, states) =
            superblock::choose([&copies[0], &copies[1]]).map_err(Unusable::Superblock)?;
        let identity = superblock.identity();
        let (unreadable, tails) = (RefCell::new(unreadable), Vec::new());
        let mut store = Store {
            device,
            unreadable,
            superblock,
            identity,
            copies: states,
            tails,
            lost_tails: Vec::new(),
        };
        for stream in 0..STREAMS {
            for which in 0..TAIL_PLACES {
                let mut place = [0; TAIL_BYTES];
                let at = superblock.geometry.tail_place(stream, which);
                if !store.read(at, &mut place) {
                    store.lost_tails.push((at, (stream * TAIL_PLACES + which) as u32));
                }
                if let Some((tail, data)) = Tail::decode(&place, &identity) {
                    store.tails.push((tail, data.to_vec()));
                }
            }
        }
        Ok(store)
    }

    /// Reads blocks. If some cannot be read, fills them with zeros, records their offsets and
    /// returns false.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> bool {
        if self.device.read_at(offset, bytes).is_ok() {
            return true;
        }
        if bytes.len() <= BLOCK {
            bytes.fill(0);
            self.unreadable.borrow_mut().insert(offset);
            return false;
        }
        let half = (bytes.len() / 2).next_multiple_of(BLOCK);
        let (front, back) = bytes.split_at_mut(half);
        self.read(offset, front) & self.read(offset + half as u64, back)
    }

    /// Returns true if no read so far has found the block with the segment's header unreadable. So
    /// the caller must have read the segment before.
    pub(super) fn can_read_header(&self, segment: SegmentNumber) -> bool {
        !self.is_unreadable(self.superblock.geometry.segment(segment), BLOCK)
    }

    /// Returns true if an earlier read found a block of this range unreadable.
    fn is_unreadable(&self, at: u64, bytes: usize) -> bool {
        self.unreadable.borrow().range(at..at + bytes as u64).next().is_some()
    }

    /// Returns the ranges that reads have found unreadable so far.
    pub(super) fn unreadable(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for &at in &*self.unreadable.borrow() {
            let end = at + BLOCK as u64;
            match ranges.last_mut() {
                Some(last) if last.end == at => last.end = end,
                _ => ranges.push(at..end),
            }
        }
        ranges
    }

    /// For a segment whose header is lost: returns the newest generation that has a trailer in the
    /// segment. Ignores generations up to `over`, whose records are no longer valid. Also ignores
    /// generations above `known` + 1 or, if it is greater, the superblock's generation floor.
    pub(super) fn use_by_trailers(
        &self,
        segment: SegmentNumber,
        over: u32,
        known: u32,
    ) -> Option<u32> {
        let mut image = Vec::new();
        self.image(segment, &mut image);
        let next = self.superblock.generation_floor.max(known + 1);
        let seed = |generation| SegmentSeed::new(self.identity.checksum_seed, segment, generation);
        let found = Trailer::find_all(&image, seed).map(|trailer| trailer.generation);
        found.filter(|generation| (over + 1..=next).contains(generation)).max()
    }

    /// Returns true if earlier reads found every block of the segment unreadable. So the caller
    /// must have read the segment before.
    pub(super) fn is_lost_whole(&self, segment: SegmentNumber) -> bool {
        let place = self.superblock.geometry.segment(segment);
        let mut blocks = (0..u64::from(self.segment_size())).step_by(BLOCK);
        blocks.all(|at| self.is_unreadable(place + at, BLOCK))
    }

    /// Returns true if the device is smaller than the store.
    pub(super) fn is_cut(&self) -> bool {
        self.device.size() < self.superblock.geometry.total_bytes()
    }

    /// Returns true if the segment and its meta lie within the device.
    pub(super) fn is_there(&self, segment: SegmentNumber) -> bool {
        let end = self.superblock.geometry.segment(segment) + u64::from(self.segment_size());
        end <= self.device.size()
    }

    pub(super) fn segment_size(&self) -> u32 {
        self.superblock.geometry.segment_size()
    }

    /// Reads the metas of a run of segments, in order.
    pub(super) fn marks(&self, run: std::ops::RangeInclusive<SegmentNumber>) -> Vec<Marks> {
        let geometry = &self.superblock.geometry;
        let (each, map_bytes) = (geometry.meta_bytes(), geometry.map_bytes());
        let mut bytes = vec![0; 2 * each * (run.end() - run.start() + 1) as usize];
        self.read(geometry.meta(*run.start(), 0), &mut bytes);
        let marks = run.zip(bytes.chunks_exact(2 * each)).map(|(segment, copies)| {
            let (first, second) = copies.split_at(each);
            let chosen = meta::choose([first, second], segment, map_bytes, &self.identity);
            let (meta, map) = match chosen.meta {
                Some((meta, map)) => (Some(meta), map.to_vec()),
                None => (None, Vec::new()),
            };
            let unread = [(0, first), (1, second)].into_iter().filter_map(|(which, copy)| {
                let at = geometry.meta(segment, which);
                let map_is_lost = Meta::has_map(copy) && self.is_unreadable(at, each);
                let version = map_is_lost.then(|| Meta::version(copy));
                if self.is_unreadable(at, BLOCK) { Some(u64::MAX) } else { version }
            });
            let unreadable = chosen.lost || chosen.may_be_older_than(unread.max());
            Marks { meta, map, damaged: chosen.damaged, unreadable }
        });
        marks.collect()
    }

    /// Reads the header of a segment. A tail place may hold a newer state of the header's block, so
    /// this function first lays the tails over that block. `meta` is the segment's meta.
    pub(super) fn header(
        &self,
        segment: SegmentNumber,
        meta: Option<Meta>,
    ) -> Result<Header, NoSegment> {
        let mut block = vec![0; BLOCK];
        let readable = self.read(self.superblock.geometry.segment(segment), &mut block);
        header_under_tails(&self.tails, &mut block, readable, &self.identity, segment, meta)
    }

    /// Reads a whole segment into `image`, and lays the tails of the segment over it.
    pub(super) fn image(&self, segment: SegmentNumber, image: &mut Vec<u8>) {
        image.resize(self.segment_size() as usize, 0);
        self.read(self.superblock.geometry.segment(segment), image);
        self.lay_tails(segment, image);
    }

    fn lay_tails(&self, segment: SegmentNumber, image: &mut [u8]) {
        for (tail, data) in self.tails.iter().filter(|(tail, _)| tail.segment == segment) {
            // `apply_to` ignores tails of other generations of the segment.
            tail.apply_to(data, &self.identity, image);
        }
    }

    /// Reads a whole jumbo. `piece` returns the segment that holds the piece with a given index,
    /// from 1; piece 0 is `segment` itself. `found` is called if the jumbo is complete and correct.
    pub(super) fn jumbo(
        &self,
        segment: SegmentNumber,
        piece: impl Fn(u32) -> Option<SegmentNumber>,
        found: impl FnOnce(&Jumbo<'_>),
    ) -> JumboState {
        let size = self.segment_size();
        let mut first = Vec::new();
        self.image(segment, &mut first);
        let Ok(jumbo) = Jumbo::open(&first, &self.identity, segment, size) else {
            return JumboState::Headless;
        };
        let mut places = vec![segment];
        for index in 1..jumbo.parts {
            match piece(index) {
                Some(place) => places.push(place),
                None => return JumboState::Incomplete,
            }
        }
        let mut hasher = ValueHasher::new(self.identity.checksum_seed);
        let mut trailer = Vec::new();
        let mut bytes = Vec::new();
        let value = jumbo.value_at..jumbo.value_at + jumbo.value_bytes;
        let closing = jumbo.trailer_at..jumbo.trailer_at + 64;
        for (index, place) in places.into_iter().enumerate() {
            let begins = index * size as usize;
            let bytes = match index {
                0 => &first,
                _ => {
                    bytes.resize(size as usize, 0);
                    self.read(self.superblock.geometry.segment(place), &mut bytes);
                    &bytes
                }
            };
            hasher.update(part(bytes, begins, &value));
            trailer.extend_from_slice(part(bytes, begins, &closing));
        }
        let Some(trailer) = jumbo.trailer(&trailer) else { return JumboState::NotCommitted };
        if !jumbo.has_value(hasher.finish()) {
            return JumboState::WrongValue(trailer);
        }
        found(&jumbo);
        JumboState::Whole(trailer)
    }
}

/// Returns the part of `bytes` that lies in `range`. Offsets in `range` count from the beginning of
/// the jumbo. `bytes` are the jumbo's bytes from offset `begins` on.
fn part<'b>(bytes: &'b [u8], begins: usize, range: &std::ops::Range<usize>) -> &'b [u8] {
    let from = range.start.saturating_sub(begins).min(bytes.len());
    let to = range.end.saturating_sub(begins).min(bytes.len());
    &bytes[from..to]
}

/// How much of a jumbo is on the device.
#[derive(Debug)]
pub(super) enum JumboState {
    /// The jumbo is complete.
    Whole(Trailer),
    /// The first segment does not hold a valid header and record head.
    Headless,
    /// At least one piece is missing: no segment's meta says that it holds the piece.
    Incomplete,
    /// The trailer is missing: either the commit did not complete, or the trailer is damaged.
    NotCommitted,
    /// The value differs from what was written.
    WrongValue(Trailer),
}
