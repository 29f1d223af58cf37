//! The structures of a store that take a few blocks: superblock, tail places, metas, index images,
//! summaries, heads of jumbos. Decoders must return for any bytes. A decoded structure must be the
//! same after it is encoded and decoded again.

#![no_main]

use larder_log::format::checksum::checksum64;
use larder_log::format::geometry::TAIL_BYTES;
use larder_log::format::index_image::{ImagePart, ImageRow};
use larder_log::format::summary::SummaryPlace;
use larder_log::format::{
    BLOCK, Identity, Meta, SegmentSeed, Summary, Superblock, Tail, jumbo::Jumbo, meta, superblock,
};
use libfuzzer_sys::fuzz_target;

const IDENTITY: Identity = Identity { store: 1, checksum_seed: 2 };
const MAP: usize = 64;

fn block<const N: usize>(data: &[u8]) -> [u8; N] {
    let mut block = [0; N];
    let length = data.len().min(N);
    block[..length].copy_from_slice(&data[..length]);
    block
}

/// Writes the checksum of the first `at` bytes behind them.
fn sign(bytes: &mut [u8], at: usize, seed: u64) {
    let checksum = checksum64(&bytes[..at], seed);
    bytes[at..at + 8].copy_from_slice(&checksum.to_le_bytes());
}

fuzz_target!(|data: &[u8]| {
    let (first, second) = data.split_at(data.len() / 2);
    let (mut a, b) = (block::<BLOCK>(first), block::<BLOCK>(second));
    let _ = superblock::choose([&a, &b]);
    a[..8].copy_from_slice(b"LARDER\0\x01");
    sign(&mut a, BLOCK - 8, 0);
    if let Ok((superblock, _)) = superblock::choose([&a, &b]) {
        // Larder never writes the superblock of a store that only a newer version of Larder may
        // write. So such a superblock need not encode correctly.
        if superblock.may_write().is_ok() {
            let mut again = [0xFF; BLOCK];
            superblock.encode(&mut again);
            assert_eq!(Superblock::decode(&again), Ok(superblock));
        }
        let geometry = superblock.geometry;
        let last = geometry.segment_count();
        assert!(geometry.meta(last, 1) < geometry.total_bytes());
        assert!(geometry.segment(1) < geometry.total_bytes());
    }

    let mut place = block::<TAIL_BYTES>(data);
    let _ = Tail::decode(&place, &IDENTITY);
    place[8..16].copy_from_slice(&IDENTITY.store.to_le_bytes());
    let length = u32::from_le_bytes([place[28], place[29], place[30], place[31]]) as usize;
    let seed = checksum64(&place[BLOCK..BLOCK + length.min(BLOCK)], IDENTITY.checksum_seed);
    sign(&mut place, 56, seed);
    if let Some((tail, held)) = Tail::decode(&place, &IDENTITY) {
        let mut again = [0xFF; TAIL_BYTES];
        tail.encode(held, &IDENTITY, &mut again);
        assert_eq!(Tail::decode(&again, &IDENTITY), Some((tail, held)));
        tail.apply_to(held, &IDENTITY, &mut [0; 2 * BLOCK]);
    }

    let mut copy = a;
    copy[..data.len().min(BLOCK)].copy_from_slice(&data[..data.len().min(BLOCK)]);
    let number = u32::from_le_bytes([copy[4], copy[5], copy[6], copy[7]]);
    meta::choose([first, second], number, MAP, &IDENTITY);
    copy[8..16].copy_from_slice(&IDENTITY.store.to_le_bytes());
    let map = if copy[37] & 1 != 0 { MAP } else { 0 };
    let seed = checksum64(&copy[64..64 + map], IDENTITY.checksum_seed);
    sign(&mut copy, 56, seed);
    if let Ok((meta, map)) = Meta::decode(&copy, number, MAP, &IDENTITY) {
        let mut again = vec![0xFF; Meta::encoded_bytes(map.len())];
        meta::map_in(&mut again, map.len()).copy_from_slice(map);
        meta.encode(number, map.len(), &IDENTITY, &mut again);
        assert_eq!(Meta::decode(&again, number, MAP, &IDENTITY), Ok((meta, map)));
    }

    let mut place = block::<TAIL_BYTES>(data);
    let word = |at: usize| u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
    let number = if data.len() < 32 { 0 } else { word(4) };
    let _ = ImagePart::decode(data, &IDENTITY, number, 0);
    place[8..16].copy_from_slice(&IDENTITY.store.to_le_bytes());
    let length = u32::from_le_bytes([place[28], place[29], place[30], place[31]]) as usize;
    let held = 64..64 + length.min(TAIL_BYTES - 64);
    let seed = checksum64(&place[held], IDENTITY.checksum_seed);
    sign(&mut place, 56, seed);
    let stop = place[16..24].iter().rev().fold(0, |stop, &byte| stop << 8 | u64::from(byte));
    if let Some((part, held)) = ImagePart::decode(&place, &IDENTITY, number, stop) {
        let again = part.encode(held, &IDENTITY);
        assert_eq!(
            ImagePart::decode(&[&again, held].concat(), &IDENTITY, number, stop),
            Some((part, held))
        );
    }
    if let Some(row) = data.first_chunk().and_then(ImageRow::decode) {
        assert_eq!(ImageRow::decode(&row.encode()), Some(row));
    }

    let mut bytes = [&[0; 128][..], data].concat();
    let (entries, head) = bytes.split_at_mut(data.len());
    let wanted = u32::from_le_bytes([head[20], head[21], head[22], head[23]]) as usize;
    let covered = &entries[entries.len() - (wanted % 64 * 24).min(entries.len())..];
    let summarized = SummaryPlace { identity: IDENTITY, segment: 3, generation: 4 };
    let seed = checksum64(covered, SegmentSeed::new(IDENTITY.checksum_seed, 3, 4).get());
    head[..4].copy_from_slice(b"LSUM");
    head[4..8].copy_from_slice(&3u32.to_le_bytes());
    head[8..16].copy_from_slice(&IDENTITY.store.to_le_bytes());
    head[16..20].copy_from_slice(&4u32.to_le_bytes());
    head[20..24].copy_from_slice(&(covered.len() as u32 / 24).to_le_bytes());
    sign(head, 120, seed);
    if let Some(summary) = Summary::decode(&bytes, &summarized, 1 << 20) {
        let again = summary.encode(&summarized);
        assert_eq!(Summary::decode(&again, &summarized, 1 << 20), Some(summary));
    }

    let _ = Jumbo::open(data, &IDENTITY, 1, 8 << 10);
});
