//! The scan of a segment. The input says what to write into a segment and how to damage the
//! segment. The scan is told an extent: how much of the segment is known to be durable. Even if the
//! extent is wrong, the scan must return only records that were written. It must return all records
//! of the commits that end before the damage, and before the end of the segment if the extent says
//! exactly where this is.

#![no_main]

use larder_log::format::segment::{HEADER_BYTES, TRAILER_BYTES};
use larder_log::format::{
    Expect, Extent, Header, Identity, SegmentSeed, Trailer, scan, seal_record,
};
use larder_log::record::write_head;
use larder_log::{Fields, Kind, Layout, Record};
use libfuzzer_sys::fuzz_target;

const SIZE: usize = 8 << 10;
const SEGMENT: u32 = 3;

/// Returns the identity of a store. Its secret seed of checksums depends on every byte of the
/// input. With a fixed seed, the fuzzer could learn to put records with correct checksums into
/// values. No client can do that, because no client knows the seed of a real store.
fn identity(input: &[u8]) -> Identity {
    const PRIME: u64 = 0x0000_0100_0000_01B3;
    let fnv = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(PRIME);
    Identity { store: 1, checksum_seed: input.iter().fold(0xCBF2_9CE4_8422_2325, fnv) }
}

/// Reads numbers from the input. Once the input is used up, they are 0.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        byte
    }

    fn number(&mut self) -> usize {
        usize::from(self.byte()) << 8 | usize::from(self.byte())
    }
}

/// Offset, seq, key and value of a record.
type Written = (u32, u64, Vec<u8>, Vec<u8>);

struct Image {
    bytes: Vec<u8>,
    seed: SegmentSeed,
    generation: u32,
    filled: usize,
    /// The offset at which each commit ends. A scan must not return records after the last commit.
    commits: Vec<usize>,
    records: Vec<Written>,
}

impl Image {
    fn new(bytes: Vec<u8>, generation: u32, identity: &Identity) -> Self {
        let header =
            Header { segment: SEGMENT, generation, stream: 0, opened: 1, born: 1, jumbo: None };
        let (commits, records) = (Vec::new(), Vec::new());
        let seed = header.seed(identity);
        let mut image = Image { bytes, seed, generation, filled: HEADER_BYTES, commits, records };
        image.bytes[..HEADER_BYTES].copy_from_slice(&header.encode(identity));
        image
    }

    fn append(&mut self, input: &mut Input<'_>) -> bool {
        let bits = input.byte();
        let kinds = [Kind::Item, Kind::Tombstone, Kind::Counter, Kind::Limiter];
        let kind = kinds[usize::from(bits >> 4 & 1 | bits >> 5 & 2)];
        let fields = Fields {
            kind,
            seq: input.number() as u64,
            cas: (bits & 1 != 0).then_some(7),
            expiry: u32::from(bits & 2),
            flags: u32::from(bits & 4),
            stale: bits & 8 != 0,
            inherits_reads: bits & 32 != 0,
        };
        let key = vec![input.byte(); usize::from(input.byte()).clamp(1, 250)];
        let length = if kind.is_item() { input.number() % 2000 } else { 0 };
        let value: Vec<u8> = (0..length).map(|_| input.byte()).collect();
        let layout = Layout::of(&fields, key.len(), length);
        let Some(room) = self.bytes.get_mut(self.filled..self.filled + layout.size()) else {
            return false;
        };
        if self.filled + layout.size() + TRAILER_BYTES > SIZE {
            return false;
        }
        let value_at = layout.value_offset();
        room[value_at..value_at + length].copy_from_slice(&value);
        // SAFETY: the room is as long as the record, and nothing else refers to it.
        unsafe {
            write_head(room.as_mut_ptr(), &layout, &fields, &key);
            seal_record(room.as_mut_ptr(), kind, &layout, None, self.seed);
        }
        self.records.push((self.filled as u32, fields.seq, key, value));
        self.filled += layout.size();
        true
    }

    fn commit(&mut self) -> bool {
        let begin = self.commits.last().copied().unwrap_or(0);
        if self.filled + TRAILER_BYTES > SIZE || begin == self.filled {
            return false;
        }
        let trailer = Trailer {
            generation: self.generation,
            length: (self.filled - begin) as u32,
            commit: self.commits.len() as u64 + 1,
            durable: Default::default(),
            seq_limit: 1,
            sealed: false,
            after_failure: false,
            early: false,
            continues: false,
        };
        let bytes = trailer.encode(&self.bytes[begin..self.filled], self.seed);
        self.bytes[self.filled..self.filled + TRAILER_BYTES].copy_from_slice(&bytes);
        self.filled += TRAILER_BYTES;
        self.commits.push(self.filled);
        true
    }

    /// Writes records and commits, as the input says, until the input says to stop, the input is
    /// used up, or one of them cannot be written. Then writes a last commit, if possible.
    fn write(&mut self, input: &mut Input<'_>) {
        loop {
            let goes_on = match input.byte() {
                0 => false,
                op if op % 4 == 0 => self.commit(),
                _ => self.append(input),
            };
            if !goes_on {
                break;
            }
        }
        self.commit();
    }
}

fn scan(bytes: &[u8], identity: Identity, generation: Option<u32>, extent: Extent) -> Vec<Written> {
    let mut found = Vec::new();
    let expect = Expect { identity, segment: SEGMENT, generation, extent };
    let _ = scan::segment(bytes, &expect, |offset, record: Record<'_>| {
        found.push((offset, record.seq(), record.key().to_vec(), record.value().to_vec()));
    });
    found
}

fuzz_target!(|data: &[u8]| {
    let identity = identity(data);
    for extent in [Extent::Unknown, Extent::Sealed] {
        assert_eq!(scan(data, identity, Some(1), extent), []);
    }
    let mut input = Input(data);
    let mut old = Image::new(vec![0; SIZE], 1, &identity);
    old.write(&mut input);
    let mut image = Image::new(old.bytes, 2, &identity);
    image.write(&mut input);
    let counted = image.commits.last().copied().unwrap_or(0);
    image.records.retain(|record| (record.0 as usize) < counted);
    assert_eq!(scan(&image.bytes, identity, None, Extent::Unknown), image.records);

    let mut bytes = image.bytes.clone();
    for _ in 0..input.byte() % 8 {
        let (at, length, byte) = (input.number() % SIZE, input.number() % 700, input.byte());
        bytes[at..(at + length).min(SIZE)].fill(byte);
    }
    bytes.truncate(SIZE - input.number() % SIZE);
    let first = bytes.iter().zip(&image.bytes).position(|(a, b)| a != b).unwrap_or(bytes.len());
    let whole = image.commits.iter().copied().take_while(|&end| end <= first).last().unwrap_or(0);
    let extent = input.number() as u32;
    for extent in
        [Extent::Unknown, Extent::Sealed, Extent::AtLeast(extent), Extent::Exactly(extent)]
    {
        let found = scan(&bytes, identity, Some(2), extent);
        assert!(found.iter().all(|record| image.records.contains(record)));
        let until = if let Extent::Exactly(end) = extent { whole.min(end as usize) } else { whole };
        let until = image.commits.iter().copied().take_while(|&end| end <= until).last();
        for record in image.records.iter().filter(|r| (r.0 as usize) < until.unwrap_or(0)) {
            assert!(found.contains(record), "a record of a whole commit is missing");
        }
    }
});
