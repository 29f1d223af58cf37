//! Builds segment images as the committer does, and remembers their content.

use super::super::segment::TRAILER_BYTES;
use super::super::*;
use crate::record::{self, Fields, HEADER, Kind, Layout, Record};

pub(super) const SIZE: usize = 8 << 10;
pub(super) const SEGMENT: u32 = 7;
pub(super) const IDENTITY: Identity =
    Identity { store: 0x0123_4567_89AB_CDEF, checksum_seed: 0xFEDC_BA98_7654_3210 };

/// An item or a tombstone, with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) offset: u32,
    pub(super) fields: Fields,
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
}

impl Written {
    pub(super) fn of(offset: u32, record: Record<'_>) -> Self {
        Written {
            offset,
            fields: record.fields(),
            key: record.key().to_vec(),
            value: record.value().to_vec(),
        }
    }

    fn layout(&self) -> Layout {
        Layout::of(&self.fields, self.key.len(), self.value.len())
    }

    /// Returns the range of the record's bytes without its padding. A change to any of these bytes
    /// destroys the record.
    pub(super) fn vital(&self) -> std::ops::Range<usize> {
        let layout = self.layout();
        let start = self.offset as usize;
        start..start + layout.value_offset() + layout.value
    }
}

/// A record to put into a segment.
#[derive(Clone, Debug)]
pub(super) enum Piece {
    Record { fields: Fields, key: Vec<u8>, value: Vec<u8> },
    Filler(usize),
}

pub(super) fn item(seq: u64, key: &[u8], value: &[u8]) -> Piece {
    let fields = Fields { seq, ..Fields::default() };
    Piece::Record { fields, key: key.to_vec(), value: value.to_vec() }
}

/// A commit in an image.
#[derive(Clone, Debug)]
pub(super) struct Commit {
    pub(super) number: u64,
    pub(super) begin: usize,
    /// Offset at which the commit's trailer ends.
    pub(super) end: usize,
}

/// A segment being written.
#[derive(Clone, Debug)]
pub(super) struct Image {
    pub(super) bytes: Vec<u8>,
    pub(super) header: Header,
    pub(super) commits: Vec<Commit>,
    pub(super) records: Vec<Written>,
    /// True if the trailers written next say that the previous commit failed.
    pub(super) after_failure: bool,
    /// True if the trailers written next are early ones.
    pub(super) early: bool,
    /// The commit number in the image's last trailer, if that trailer is an early one. The next
    /// trailer may then continue the same commit.
    open: Option<u64>,
    filled: usize,
}

impl Image {
    pub(super) fn new(generation: u32) -> Self {
        Self::over(vec![0; SIZE], generation)
    }

    /// Creates a segment that is written over the remains of an earlier generation.
    pub(super) fn over(mut bytes: Vec<u8>, generation: u32) -> Self {
        let header =
            Header { segment: SEGMENT, generation, stream: 0, opened: 1, born: 5, jumbo: None };
        bytes[..64].copy_from_slice(&header.encode(&IDENTITY));
        Image {
            bytes,
            header,
            commits: Vec::new(),
            records: Vec::new(),
            after_failure: false,
            early: false,
            open: None,
            filled: 64,
        }
    }

    pub(super) fn seed(&self) -> SegmentSeed {
        self.header.seed(&IDENTITY)
    }

    /// Appends a record. Returns false if the record and a trailer do not fit.
    pub(super) fn append(&mut self, piece: &Piece) -> bool {
        let none = (Fields::of_kind(Kind::Filler), Vec::new(), Vec::new());
        let (fields, key, value) = match piece.clone() {
            Piece::Record { fields, key, value } => (fields, key, value),
            Piece::Filler(_) => none,
        };
        let mut layout = Layout::of(&fields, key.len(), value.len());
        if let Piece::Filler(bytes) = piece {
            layout.value = bytes - HEADER;
        }
        let at = self.filled;
        if at + layout.size() + TRAILER_BYTES > self.bytes.len() {
            return false;
        }
        let memory = self.bytes[at..at + layout.size()].as_mut_ptr();
        let seed = self.seed();
        // SAFETY: the record's bytes lie inside the vector, and no other thread has them.
        unsafe {
            if fields.kind == Kind::Filler {
                record::write_filler(memory, layout.size());
            } else {
                record::write_head(memory, &layout, &fields, &key);
                let into = memory.add(layout.value_offset());
                into.copy_from_nonoverlapping(value.as_ptr(), value.len());
                self.records.push(Written { offset: at as u32, fields, key, value });
            }
            seal_record(memory, fields.kind, &layout, None, seed);
        }
        self.filled += layout.size();
        true
    }

    /// Appends the trailer that ends a commit.
    pub(super) fn commit(&mut self, number: u64, sealed: bool) {
        self.commit_from(self.end(), number, sealed);
    }

    /// Appends a trailer that claims to cover the bytes from `begin` on.
    pub(super) fn commit_from(&mut self, begin: usize, number: u64, sealed: bool) {
        let trailer = Trailer {
            generation: self.header.generation,
            length: (self.filled - begin) as u32,
            commit: number,
            durable: [DurableEnd { segment: SEGMENT, offset: begin as u32 }, DurableEnd::default()],
            seq_limit: number * 1000,
            sealed,
            after_failure: self.after_failure,
            early: self.early,
            continues: self.open == Some(number),
        };
        let bytes = trailer.encode(&self.bytes[begin..self.filled], self.seed());
        self.bytes[self.filled..self.filled + TRAILER_BYTES].copy_from_slice(&bytes);
        self.filled += TRAILER_BYTES;
        self.commits.push(Commit { number, begin, end: self.filled });
        self.open = self.early.then_some(number);
    }

    /// Returns the offset at which the last trailer ends; 0 without one.
    pub(super) fn end(&self) -> usize {
        self.commits.last().map_or(0, |commit| commit.end)
    }

    /// Returns the records in commits that end at or before `end`.
    pub(super) fn records_before(&self, end: usize) -> Vec<Written> {
        let whole = self.commits.iter().map(|commit| commit.end).take_while(|&e| e <= end).last();
        let whole = whole.unwrap_or(0);
        self.records.iter().filter(|w| (w.offset as usize) < whole).cloned().collect()
    }

    /// Returns the result of scanning `bytes`.
    pub(super) fn scan(
        bytes: &[u8],
        generation: Option<u32>,
        extent: Extent,
    ) -> (Result<Scanned, NoSegment>, Vec<Written>) {
        let mut found = Vec::new();
        let expect = Expect { identity: IDENTITY, segment: SEGMENT, generation, extent };
        let scanned = scan::segment(bytes, &expect, |offset, record| {
            found.push(Written::of(offset, record));
        });
        (scanned, found)
    }
}

/// Returns a segment with three commits. They contain items, a tombstone and fillers, and one item
/// has every optional field. The segment is written over a full segment of an earlier generation,
/// so the bytes behind the last commit are old records.
pub(super) fn example() -> Image {
    let mut old = Image::new(3);
    let mut seq = 1;
    while old.append(&item(seq, b"left behind", b"from an earlier use")) {
        seq += 1;
    }
    old.commit(1, true);
    let mut image = Image::over(old.bytes, 4);
    let all = Fields {
        seq: 77,
        cas: Some(9),
        expiry: 1 << 31,
        flags: 3,
        stale: true,
        ..Fields::default()
    };
    let long = vec![b'v'; 700];
    for (number, pieces) in [
        vec![item(11, b"a", b""), item(12, b"key", b"value"), Piece::Filler(48)],
        vec![
            Piece::Record { fields: all, key: vec![b'k'; 250], value: long },
            Piece::Record {
                fields: Fields { seq: 13, ..Fields::of_kind(Kind::Tombstone) },
                key: b"a".to_vec(),
                value: Vec::new(),
            },
        ],
        vec![Piece::Filler(16), item(14, b"last", b"of them all")],
    ]
    .into_iter()
    .enumerate()
    {
        assert!(pieces.iter().all(|piece| image.append(piece)));
        image.commit(5 + number as u64, false);
    }
    image
}
