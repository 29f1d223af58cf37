//! Tests of the file format: encoded structures decode to the same values, changed bytes are
//! refused, and the bytes are those that `docs/file-format.md` describes.

mod clock;
mod image;
mod scan;

use super::checksum::checksum64;
use super::geometry::TAIL_BYTES;
use super::meta::{MetaError, map_in};
use super::segment::JumboSize;
use super::superblock::{self, Copy};
use super::*;
use crate::record::{Fields, Kind, Layout, Record, write_head};
use image::{IDENTITY, Image, SEGMENT, SIZE, example};
use proptest::prelude::*;

fn a_superblock() -> Superblock {
    Superblock {
        counter: 6,
        compatible: 1 << 40,
        store_id: 0x1111_2222_3333_4444_5555_6666_7777_8888,
        hash_seed: 9,
        checksum_seed: 10,
        geometry: Geometry::new(1 << 20, 64).expect("geometry"),
        created: 1_700_000_000,
        clean: true,
        volatile: false,
        seq_limit: 12,
        fence: 13,
        pending_flush: 14,
        next_commit: 15,
        image_segment: 16,
        generation_floor: 0,
        image_bytes: 17,
        lanes: Lanes::alone(0x1111_2222_3333_4444_5555_6666_7777_8888),
        fast_segments: 0,
        renewed: false,
        counters: false,
        clock: 0,
        boot_id: 0,
        boot_offset: 0,
        accepted: Accepted::default(),
        read_only: None,
    }
}

fn encoded(superblock: &Superblock) -> [u8; BLOCK] {
    let mut bytes = [0xAA; BLOCK];
    superblock.encode(&mut bytes);
    bytes
}

/// Changes a field and corrects the checksum.
fn with_field(mut bytes: [u8; BLOCK], at: usize, field: u32) -> [u8; BLOCK] {
    bytes[at..at + 4].copy_from_slice(&field.to_le_bytes());
    let checksum = checksum64(&bytes[..BLOCK - 8], 0);
    bytes[BLOCK - 8..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

#[test]
fn the_newest_whole_superblock_counts() {
    let newer = a_superblock();
    let older = Superblock { counter: 5, clean: false, ..newer };
    let (a, b) = (encoded(&newer), encoded(&older));
    assert_eq!((newer.copy(), older.copy()), (0, 1));
    assert_eq!(superblock::choose([&a, &b]), Ok((newer, [Copy::Whole; 2])));
    let mut torn = a;
    torn[..512].copy_from_slice(&encoded(&Superblock { counter: 7, clean: false, ..newer })[..512]);
    assert_eq!(superblock::choose([&torn, &b]), Ok((older, [Copy::Damaged, Copy::Whole])));
    assert_eq!(superblock::choose([&a, &[0; BLOCK]]), Ok((newer, [Copy::Whole, Copy::Empty])));
    let torn_too = {
        let mut bytes = b;
        bytes[300] ^= 1;
        bytes
    };
    assert_eq!(superblock::choose([&torn, &torn_too]), Err(SuperblockError::Damaged));
    assert_eq!(superblock::choose([&[0; BLOCK], &torn_too]), Err(SuperblockError::Empty));
}

#[test]
fn the_clock_and_accepted_damage_have_the_documented_offsets() {
    let mut superblock =
        Superblock { clock: 0x0102_0304, boot_id: 0x0506_0708, boot_offset: -2, ..a_superblock() };
    assert!(superblock.accepted.accept(5, 6, 7));
    let bytes = encoded(&superblock);
    assert_eq!(bytes[3012..3016], [4, 3, 2, 1]);
    assert_eq!(bytes[3016..3024], [5, 0, 0, 6, 0, 0, 0, 7]);
    assert_eq!(bytes[3024..4040], [0; 1016]);
    assert_eq!(bytes[4046..4064], [&[0, 0, 8, 7, 6, 5][..], &[0; 12]].concat());
    assert_eq!(bytes[4064..4088], [&[254][..], &[255; 7], &[0; 16]].concat());
    assert_eq!(Superblock::decode(&bytes), Ok(superblock));
}

#[test]
fn the_tier_feature_is_set_only_with_a_lower_device() {
    let plain = encoded(&a_superblock());
    assert_eq!((plain[40], &plain[3008..4040]), (0, &[0; 1032][..]));
    assert_eq!(plain[4040..4088], [&[0, 0, 1, 0][..], &[0; 44]].concat());
    let tiered = Superblock { fast_segments: 20, ..a_superblock() };
    let bytes = encoded(&tiered);
    assert_eq!((bytes[40], &bytes[3008..3012]), (2, &[20, 0, 0, 0][..]));
    assert_eq!(Superblock::decode(&bytes), Ok(tiered));
    for impossible in [0, 65] {
        let changed = with_field(bytes, 3008, impossible);
        assert_eq!(Superblock::decode(&changed), Err(SuperblockError::Damaged));
    }
}

#[test]
fn an_unknown_superblock_is_refused_even_beside_a_known_one() {
    let known = encoded(&Superblock { counter: 5, ..a_superblock() });
    let newest = encoded(&a_superblock());
    for (at, field, error) in [
        (8, 2, SuperblockError::UnknownVersion(2, Release([0, 1, 0]))),
        (40, 16, SuperblockError::UnknownFeatures(16, Release([0, 1, 0]))),
        (80, 12345, SuperblockError::Damaged),
        (84, 0, SuperblockError::Damaged),
    ] {
        let changed = with_field(newest, at, field);
        assert_eq!(superblock::choose([&changed, &known]).err(), Some(error));
        assert_eq!(Superblock::decode(&changed).err(), Some(error));
    }
    let compatible = superblock::choose([&with_field(newest, 24, 99), &known]).expect("a store").0;
    assert_eq!((compatible.compatible as u32, compatible.may_write()), (99, Ok(())));
    let read_only = superblock::choose([&with_field(newest, 32, 4), &known]).expect("a store").0;
    let unknown = SuperblockError::UnknownToWrite(4, Release([0, 1, 0]));
    assert_eq!(read_only.may_write(), Err(unknown));
}

#[test]
fn an_empty_device_is_distinguished_from_a_foreign_one() {
    let empty = [0; BLOCK];
    let other = {
        let mut bytes = empty;
        bytes[4000] = 1;
        bytes
    };
    assert_eq!(superblock::choose([&empty, &empty]), Err(SuperblockError::Empty));
    assert_eq!(superblock::choose([&empty, &other]), Err(SuperblockError::NotAStore));
    assert_eq!(superblock::choose([&other, &empty]), Err(SuperblockError::NotAStore));
}

/// The first write to a new device contains only the magic, and the second is the first superblock.
/// A crash may interrupt either write. After the crash, the device must count as empty.
#[test]
fn an_interrupted_creation_leaves_an_empty_device() {
    let (empty, mark) = ([0; BLOCK], superblock::mark());
    for cut in 0..16 {
        let mut part = empty;
        part[..cut].copy_from_slice(&mark[..cut]);
        assert_eq!(superblock::choose([&empty, &part]), Err(SuperblockError::Empty));
        part[9] = 1;
        let other = if cut < 8 { SuperblockError::NotAStore } else { SuperblockError::Empty };
        assert_eq!(superblock::choose([&empty, &part]), Err(other), "{cut}");
    }
    let first = encoded(&Superblock { counter: 1, ..a_superblock() });
    // A crash may leave any set of the superblock's 8 sectors written. Tries all sets without the
    // first or the last sector. The other sectors are all zero, so a set with both of these would
    // be a whole superblock.
    for sectors in (0..1 << 8).filter(|sectors| sectors & 0x81 != 0x81) {
        let mut part = mark;
        for sector in (0..8).filter(|sector| sectors & 1 << sector != 0) {
            let bytes = sector * 512..(sector + 1) * 512;
            part[bytes.clone()].copy_from_slice(&first[bytes]);
        }
        assert_eq!(superblock::choose([&empty, &part]), Err(SuperblockError::Empty));
    }
}

#[test]
fn a_changed_byte_is_noticed_in_every_structure() {
    let superblock = encoded(&a_superblock());
    let mut place = [0; TAIL_BYTES];
    let tail = Tail { stream: 1, segment: SEGMENT, generation: 2, offset: 4096, commit: 9 };
    tail.encode(&[5; 100], &IDENTITY, &mut place);
    let mut meta = vec![0; BLOCK];
    map_in(&mut meta, 64).fill(3);
    let spoken = Meta { version: 3, cover: 4, generation: 5, usage: Use::InUse { end: 4096 } };
    spoken.encode(SEGMENT, 64, &IDENTITY, &mut meta);
    for change in [1, 0x80] {
        for at in 0..BLOCK {
            let mut bytes = superblock;
            bytes[at] ^= change;
            assert!(Superblock::decode(&bytes).is_err(), "byte {at} of the superblock");
        }
        for at in (0..64).chain(BLOCK..BLOCK + 100) {
            place[at] ^= change;
            assert_eq!(Tail::decode(&place, &IDENTITY), None, "byte {at} of a tail place");
            place[at] ^= change;
        }
        for at in 0..128 {
            meta[at] ^= change;
            let read = Meta::decode(&meta, SEGMENT, 64, &IDENTITY);
            assert_eq!(read, Err(MetaError::Damaged), "byte {at} of a meta");
            meta[at] ^= change;
        }
    }
    assert!(Tail::decode(&place, &IDENTITY).is_some());
    assert_eq!(Meta::decode(&meta, SEGMENT, 64, &IDENTITY), Ok((spoken, &[3; 64][..])));
    assert_eq!(Meta::decode(&meta, 8, 64, &IDENTITY), Err(MetaError::Damaged), "misdirected");
    let other = Identity { store: !IDENTITY.store, ..IDENTITY };
    assert_eq!(Meta::decode(&meta, SEGMENT, 64, &other), Err(MetaError::Absent));
}

#[test]
fn the_newer_whole_meta_counts() {
    let encode = |version, usage, map: usize| {
        let mut bytes = vec![0xEE; Meta::encoded_bytes(map)];
        map_in(&mut bytes, map).fill(0);
        if map > 0 {
            meta::mark(map_in(&mut bytes, map), 8);
            meta::mark(map_in(&mut bytes, map), 4080);
        }
        Meta { version, cover: 1, generation: 1, usage }
            .encode(SEGMENT, map, &IDENTITY, &mut bytes);
        bytes
    };
    let map_bytes = SIZE / 128;
    let marked = encode(1, Use::InUse { end: 0 }, map_bytes);
    let mut freed = encode(2, Use::Free, 0);
    let chosen = meta::choose([&freed, &marked], SEGMENT, map_bytes, &IDENTITY);
    assert_eq!(chosen.meta.map(|(meta, map)| (meta.usage, map.len())), Some((Use::Free, 0)));
    let again = encode(3, Use::InUse { end: 64 }, 0);
    let chosen = meta::choose([&freed, &again], SEGMENT, map_bytes, &IDENTITY);
    assert_eq!(chosen.meta.map(|(meta, _)| meta.usage), Some(Use::InUse { end: 64 }));
    freed[30] ^= 1;
    let chosen = meta::choose([&freed, &marked], SEGMENT, map_bytes, &IDENTITY);
    let (meta, map) = chosen.meta.expect("the older one");
    assert!(chosen.damaged && !chosen.lost && meta.usage == Use::InUse { end: 0 });
    let dead: Vec<usize> = (0..SIZE).step_by(8).filter(|&at| meta::is_marked(map, at)).collect();
    assert_eq!(dead, [0, 8, 4080, 4088], "the 16 bytes in which a record begins");
    assert!(!meta::is_marked(&[], 8));
    // A crash may interrupt the first write of a meta. No meta is lost then.
    let chosen = meta::choose([&[0; BLOCK], &freed], SEGMENT, map_bytes, &IDENTITY);
    assert!(chosen.meta.is_none() && chosen.damaged && !chosen.lost);
    let mut again = again;
    again[30] ^= 1;
    let chosen = meta::choose([&freed, &again], SEGMENT, map_bytes, &IDENTITY);
    assert!(chosen.meta.is_none() && chosen.lost);
}

#[test]
fn a_meta_admits_only_generations_that_are_not_over() {
    let meta = |usage| Meta { version: 1, cover: 0, generation: 5, usage };
    let admitted = |usage| [4, 5, 6].map(|generation| meta(usage).admits(generation));
    assert_eq!(admitted(Use::Free), [false, false, true]);
    assert_eq!(admitted(Use::InUse { end: 0 }), [false, true, true]);
    let part = Use::Part { owner: 3, owner_generation: 1, index: 1 };
    assert_eq!(admitted(part), [false, false, true]);
    assert!(meta(Use::InUse { end: 0 }).describes(5) && !meta(Use::InUse { end: 0 }).describes(6));
}

#[test]
fn a_tail_restores_a_torn_block() {
    let image = example();
    let first = image.commits[0].end;
    let place = |generation, offset, data: &[u8]| {
        let mut place = [0; TAIL_BYTES];
        let tail = Tail { stream: 0, segment: SEGMENT, generation, offset, commit: 5 };
        tail.encode(data, &IDENTITY, &mut place);
        place
    };
    let good = place(4, 0, &image.bytes[..first]);
    let (tail, data) = Tail::decode(&good, &IDENTITY).expect("a tail");
    // Tries three states of the segment's place: an earlier generation, the block as a torn write
    // of a later commit left it, and zeros. The tail must restore the block in each case.
    let old = Image::new(3).bytes;
    let second = image.commits[1].end;
    let torn = [&[0; 512], &image.bytes[512..second], &old[second..]].concat();
    for mut bytes in [old, torn, vec![0; SIZE]] {
        assert!(tail.apply_to(data, &IDENTITY, &mut bytes));
        let (scanned, found) = Image::scan(&bytes, None, Extent::AtLeast(first as u32));
        assert_eq!(found, image.records_before(first));
        assert_eq!(scanned.expect("a segment").damage, Damage::default());
    }
    let newer = Image::new(9).bytes;
    let mut bytes = newer.clone();
    assert!(!tail.apply_to(data, &IDENTITY, &mut bytes), "an earlier use's tail");
    let (tail, data) = (Tail { offset: 4096, generation: 10, ..tail }, data);
    assert!(!tail.apply_to(data, &IDENTITY, &mut bytes), "the block before it is not there");
    assert!(!Tail { offset: 1 << 20, ..tail }.apply_to(data, &IDENTITY, &mut bytes));
    assert_eq!(bytes, newer);
}

/// Returns the image of a jumbo, and the range of its value.
fn jumbo_image(value: &[u8]) -> (Vec<u8>, std::ops::Range<usize>) {
    let fields = Fields { seq: 3, cas: Some(1), ..Fields::default() };
    let layout = Layout::of(&fields, 5, value.len());
    let mut image = vec![0; jumbo::image_bytes(layout.size())];
    let size =
        JumboSize { value: value.len() as u64, parts: jumbo::parts(layout.size(), SIZE as u32) };
    let header = Header {
        segment: SEGMENT,
        generation: 2,
        stream: 0,
        opened: 8,
        born: 1,
        jumbo: Some(size),
    };
    image[..64].copy_from_slice(&header.encode(&IDENTITY));
    let value_at = jumbo::RECORD_AT + layout.value_offset();
    image[value_at..value_at + value.len()].copy_from_slice(value);
    let trailer_at = jumbo::RECORD_AT + layout.size();
    let seed = header.seed(&IDENTITY);
    let record = image[jumbo::RECORD_AT..trailer_at].as_mut_ptr();
    // SAFETY: the record's bytes belong to the vector, and no other thread has them.
    unsafe {
        write_head(record, &layout, &fields, b"jumbo");
        seal_record(record, Kind::Item, &layout, None, seed);
    }
    let trailer = Trailer {
        generation: 2,
        length: trailer_at as u32,
        commit: 8,
        durable: Default::default(),
        seq_limit: 100,
        sealed: true,
        after_failure: false,
        early: false,
        continues: false,
    };
    let trailer = trailer.encode(&image[..value_at], seed);
    image[trailer_at..].copy_from_slice(&trailer);
    (image, value_at..value_at + value.len())
}

#[test]
fn a_jumbo_is_checked_without_its_value_and_with_it() {
    for length in [5000, SIZE, 3 * SIZE - 181, 17 << 20] {
        let value: Vec<u8> = (0..length).map(|at| (at * 7 % 251) as u8).collect();
        let (mut image, value_range) = jumbo_image(&value);
        let open = |image: &[u8]| {
            let jumbo = jumbo::Jumbo::open(&image[..BLOCK], &IDENTITY, SEGMENT, SIZE as u32)?;
            assert_eq!((jumbo.key, jumbo.fields.cas), (&b"jumbo"[..], Some(1)));
            assert_eq!(jumbo.value_at..jumbo.value_at + jumbo.value_bytes, value_range);
            let committed = jumbo.trailer(&image[jumbo.trailer_at..]).is_some();
            let mut hasher = ValueHasher::new(IDENTITY.checksum_seed);
            image[value_range.clone()].chunks(1000).for_each(|piece| hasher.update(piece));
            Ok::<_, NoSegment>((committed, jumbo.has_value(hasher.finish())))
        };
        assert_eq!(open(&image), Ok((true, true)));
        assert_eq!(image.len().div_ceil(SIZE) as u32, jumbo::parts(image.len() - 128, SIZE as u32));
        image[value_range.end - 1] ^= 1;
        assert_eq!(open(&image), Ok((true, false)), "its value is damaged");
        image[value_range.end - 1] ^= 1;
        let checksum_at = jumbo::RECORD_AT + 11;
        image[checksum_at] ^= 1;
        assert_eq!(open(&image), Ok((false, false)), "its head is damaged");
        assert_eq!(Image::scan(&image, None, Extent::Unknown).0.err(), Some(NoSegment::Jumbo));
    }
}

#[test]
fn a_record_is_intact_only_in_its_own_segment_and_generation() {
    let image = example();
    for written in &image.records {
        let bytes = &image.bytes[written.offset as usize..];
        let record = Record::parse(bytes, None).expect("a record");
        assert!(record_is_intact(&record, image.seed()));
        for (segment, generation) in [(SEGMENT, 3), (SEGMENT, 5), (SEGMENT + 1, 4)] {
            let seed = SegmentSeed::new(IDENTITY.checksum_seed, segment, generation);
            assert!(!record_is_intact(&record, seed));
        }
    }
}

/// Fails if the format changes unintentionally. These bytes are the format of version 1 and must
/// never change.
#[test]
fn the_bytes_are_those_of_version_1() {
    let mut place = [0; TAIL_BYTES];
    let tail = Tail { stream: 1, segment: SEGMENT, generation: 2, offset: 4096, commit: 9 };
    tail.encode(&[5; 100], &IDENTITY, &mut place);
    let mut meta = vec![0; BLOCK];
    let part = Use::Part { owner: 3, owner_generation: 1, index: 2 };
    Meta { version: 1, cover: 2, generation: 3, usage: part }
        .encode(SEGMENT, 64, &IDENTITY, &mut meta);
    let sums = [
        checksum64(&encoded(&a_superblock()), 0),
        checksum64(&place, 0),
        checksum64(&meta, 0),
        checksum64(&example().bytes, 0),
        checksum64(&jumbo_image(&[1; 9000]).0, 0),
    ];
    assert_eq!(
        sums,
        [
            12_558_361_328_061_774_280,
            583_324_847_973_114_249,
            16_264_501_647_141_652_811,
            14_568_653_058_556_995_653,
            5_612_630_360_553_345_465,
        ]
    );
}

proptest! {
    #[test]
    fn superblocks_read_back(
        ids in any::<(u64, u64, u128, u64, u64)>(),
        shape in (13u32..24, 1u32..1 << 23),
        fast in any::<u32>(),
        numbers in (0..1u64 << 48, 0..=1u64 << 48, any::<u32>(), any::<u64>(), any::<u64>()),
        flags in any::<(bool, bool)>(),
    ) {
        let geometry = Geometry::new(1 << shape.0, shape.1).expect("geometry");
        let superblock = Superblock {
            counter: ids.0,
            compatible: ids.1,
            store_id: ids.2,
            hash_seed: ids.3,
            checksum_seed: ids.4,
            geometry,
            created: numbers.3,
            clean: flags.0,
            volatile: flags.1,
            seq_limit: numbers.0,
            fence: numbers.1,
            pending_flush: numbers.2,
            next_commit: numbers.4,
            image_segment: numbers.2 % (shape.1 + 1),
            generation_floor: 0,
            image_bytes: numbers.3,
            lanes: Lanes::alone(ids.2),
            fast_segments: fast % (shape.1 + 1),
            renewed: fast % 2 == 1,
            counters: fast % 3 == 1,
            clock: fast ^ 7,
            boot_id: ids.2.rotate_left(9),
            boot_offset: numbers.4 as i64,
            accepted: Accepted::default(),
            read_only: None,
        };
        prop_assert_eq!(Superblock::decode(&encoded(&superblock)), Ok(superblock));
    }

    #[test]
    fn headers_and_trailers_read_back(
        numbers in any::<(u32, u32, u64, u32, u64)>(),
        sizes in (0..2u8, 0u32..1 << 23, any::<bool>(), 0..1u64 << 48),
        ends in any::<(u32, u32, u32, u32)>(),
        covered in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let (segment, generation, opened, born, value) = numbers;
        let jumbo = (sizes.1 != 0).then_some(JumboSize { value, parts: sizes.1 });
        let header = Header { segment, generation, stream: sizes.0, opened, born, jumbo };
        let bytes = header.encode(&IDENTITY);
        prop_assert_eq!(Header::decode(&bytes, &IDENTITY, segment), Ok(header));
        prop_assert_eq!(Record::parse(&bytes, None).map(|r| (r.kind(), r.size())), Some((Kind::Commit, 64)));

        let seed = header.seed(&IDENTITY);
        let durable = [(ends.0, ends.1), (ends.2, ends.3)]
            .map(|(segment, offset)| DurableEnd { segment, offset });
        let trailer = Trailer {
            generation, length: born, commit: opened, durable, seq_limit: sizes.3, sealed: sizes.2,
            after_failure: born.is_multiple_of(2),
            early: false,
            continues: false,
        };
        let bytes = trailer.encode(&covered, seed);
        let found = Trailer::find(&bytes, generation, seed).expect("a trailer");
        prop_assert_eq!(found.trailer, trailer);
        prop_assert!(found.covers(&covered));
        let mut changed = covered.clone();
        changed.push(0);
        prop_assert!(!found.covers(&changed));
        prop_assert_eq!(Record::parse(&bytes, None).map(|r| (r.kind(), r.size())), Some((Kind::Commit, 64)));
    }

    #[test]
    fn arbitrary_bytes_decode_to_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..TAIL_BYTES)) {
        let mut place = [0; TAIL_BYTES];
        place[..bytes.len()].copy_from_slice(&bytes);
        prop_assert_eq!(Tail::decode(&place, &IDENTITY), None);
        let block: &[u8; BLOCK] = place.first_chunk().expect("a block");
        prop_assert!(Superblock::decode(block).is_err());
        prop_assert!(Meta::decode(&bytes, 1, 64, &IDENTITY).is_err());
        prop_assert!(Header::decode(&bytes, &IDENTITY, 1).is_err());
        prop_assert!(jumbo::Jumbo::open(&bytes, &IDENTITY, 1, SIZE as u32).is_err());
        for length in [None, Some(0), Some(usize::MAX / 2)] {
            if let Some(record) = Record::parse(&bytes, length) {
                prop_assert!(record.size() <= bytes.len());
                prop_assert!(record.key().len() + record.value().len() <= bytes.len());
            }
        }
    }
}
