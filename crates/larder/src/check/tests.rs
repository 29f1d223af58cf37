//! Tests with stores that are built by hand according to `docs/file-format.md`, and then damaged.

use larder_disk::{Device, FileDevice, OpenError, SimDevice};
use larder_log::SegmentNumber;
use larder_log::format::geometry::{SUPERBLOCKS, TAIL_BYTES};
use larder_log::format::segment::JumboSize;
use larder_log::format::summary::{SummaryEntry, SummaryPlace};
use larder_log::format::{
    BLOCK, DurableEnd, Expect, Extent, Geometry, Header, MachineTime, Meta, NANOS, SegmentSeed,
    Summary, Superblock, Tail, Trailer, Use, meta, record_checksum, scan, value_hash,
};

use super::report::{Report, Verdict};
use super::survey::{Unusable, survey};
use super::{CheckError, open};

const SEGMENT: u32 = 64 << 10;
const NOW: u64 = 1_800_000_000;
const CLOCKS: MachineTime = MachineTime { wall: NOW * NANOS, boot_id: 0, since_boot: 0 };

/// A store under construction.
struct Image {
    device: SimDevice,
    superblock: Superblock,
}

/// A segment under construction.
struct Segment {
    header: Header,
    bytes: Vec<u8>,
    /// Offset at which the open commit begins.
    begun: usize,
}

impl Image {
    fn new(segments: u32) -> Image {
        let geometry = Geometry::new(SEGMENT, segments).unwrap();
        let store_id = 0x1234_5678_9abc_def0_0fed_cba9_8765_4321;
        let superblock = Superblock {
            counter: 1,
            seq_limit: 1000,
            next_commit: 0,
            ..Superblock::new(store_id, 7, 0x5eed, geometry, NOW - 86_400)
        };
        let image = Image { device: SimDevice::new(geometry.total_bytes(), 1), superblock };
        image.write_superblock();
        image
    }

    fn write_superblock(&self) {
        let mut block = [0; BLOCK];
        self.superblock.encode(&mut block);
        let at = SUPERBLOCKS[self.superblock.copy()];
        self.device.write_at(at, &block).unwrap();
    }

    fn seed(&self, segment: SegmentNumber) -> SegmentSeed {
        SegmentSeed::new(self.superblock.checksum_seed, segment, 1)
    }

    fn segment(&self, segment: SegmentNumber, opened: u64) -> Segment {
        let header =
            Header { segment, generation: 1, stream: 0, opened, born: 1_799_000_000, jumbo: None };
        let bytes = header.encode(&self.superblock.identity()).to_vec();
        Segment { header, bytes, begun: 0 }
    }

    fn item(&self, segment: &mut Segment, key: &str, seq: u64, value: &[u8]) -> usize {
        self.record(segment, 0, key, seq, value)
    }

    /// Appends an item (kind 0) or a tombstone (kind 1). Returns its offset.
    fn record(&self, segment: &mut Segment, kind: u8, key: &str, seq: u64, value: &[u8]) -> usize {
        let begins = segment.bytes.len();
        let head = self.head(segment.header.segment, kind, key, seq, value, value.len() as u32);
        segment.bytes.extend_from_slice(&head);
        segment.bytes.extend_from_slice(value);
        segment.bytes.resize(segment.bytes.len().next_multiple_of(8), 0);
        begins
    }

    fn head(
        &self,
        segment: SegmentNumber,
        kind: u8,
        key: &str,
        seq: u64,
        value: &[u8],
        length: u32,
    ) -> Vec<u8> {
        let mut head = seq.to_le_bytes()[..6].to_vec();
        head.push(key.len() as u8);
        head.extend_from_slice(&length.to_le_bytes()[..3]);
        head.push(kind);
        head.extend_from_slice(&[0; 4]);
        head.extend_from_slice(key.as_bytes());
        let hash = value_hash(value, self.superblock.checksum_seed);
        let checksum = record_checksum(&head, hash, self.seed(segment));
        head[11..15].copy_from_slice(&checksum.to_le_bytes());
        head
    }

    /// Ends a commit. `durable` is the offset up to which stream 0 (`Hot`) was durable before this
    /// commit.
    fn commit(&self, segment: &mut Segment, commit: u64, durable: DurableEnd, sealed: bool) {
        let trailer = Trailer {
            generation: 1,
            length: (segment.bytes.len() - segment.begun) as u32,
            commit,
            durable: [durable, DurableEnd::default()],
            seq_limit: 1000,
            sealed,
            after_failure: false,
            early: false,
            continues: false,
        };
        let covered = &segment.bytes[segment.begun..];
        let trailer = trailer.encode(covered, self.seed(segment.header.segment));
        segment.bytes.extend_from_slice(&trailer);
        segment.begun = segment.bytes.len();
    }

    fn write(&self, segment: &Segment) {
        let at = self.superblock.geometry.segment(segment.header.segment);
        self.device.write_at(at, &segment.bytes).unwrap();
    }

    fn write_meta(&self, segment: SegmentNumber, usage: Use, dead: &[usize]) {
        self.write_meta_of(1, segment, usage, dead);
    }

    fn write_meta_of(&self, generation: u32, segment: SegmentNumber, usage: Use, dead: &[usize]) {
        let meta = Meta { version: 1, cover: 0, generation, usage };
        let geometry = &self.superblock.geometry;
        let map = if dead.is_empty() { 0 } else { geometry.map_bytes() };
        let mut bytes = vec![0; Meta::encoded_bytes(map)];
        if map > 0 {
            dead.iter().for_each(|at| meta::mark(meta::map_in(&mut bytes, map), *at));
        }
        meta.encode(segment, map, &self.superblock.identity(), &mut bytes);
        self.device.write_at(geometry.meta(segment, meta.copy()), &bytes).unwrap();
    }

    fn flip(&self, segment: SegmentNumber, at: usize) {
        let at = self.superblock.geometry.segment(segment) + at as u64;
        let mut byte = [0];
        self.device.read_at(at, &mut byte).unwrap();
        self.device.write_at(at, &[byte[0] ^ 1]).unwrap();
    }

    fn report(&self) -> Report {
        survey(&self.device, &CLOCKS, &mut |_, _| {}).unwrap()
    }
}

fn end(segment: &Segment) -> DurableEnd {
    DurableEnd { segment: segment.header.segment, offset: segment.bytes.len() as u32 }
}

/// Builds a sealed segment with commits 1 and 2, and an open one with commits 3 and 4.
fn two_segments(image: &Image) -> (Segment, Segment) {
    let mut one = image.segment(1, 1);
    image.item(&mut one, "a", 1, b"old");
    image.item(&mut one, "b", 2, &[b'b'; 1000]);
    image.commit(&mut one, 1, DurableEnd::default(), false);
    let durable = end(&one);
    image.item(&mut one, "c", 3, b"three");
    image.commit(&mut one, 2, durable, true);
    let durable = end(&one);
    let mut two = image.segment(2, 3);
    image.item(&mut two, "a", 4, b"new");
    image.record(&mut two, 1, "b", 5, b"");
    image.commit(&mut two, 3, durable, false);
    let durable = end(&two);
    image.item(&mut two, "d", 6, b"last");
    image.commit(&mut two, 4, durable, false);
    image.write(&one);
    image.write(&two);
    (one, two)
}

#[test]
fn an_intact_store_is_clean() {
    let image = Image::new(40);
    two_segments(&image);
    let report = image.report();
    assert_eq!(report.verdict, Verdict::Clean, "{report}");
    // The records are a (twice), b, the tombstone of b, c and d. Live items are the newer a, c and
    // d.
    assert_eq!((report.records, report.live_items), (6, 3));
    assert_eq!(report.last_commit, 4);
    assert_eq!(report.live_bytes + report.dead_bytes, report.record_bytes);
    let segments = report.segments;
    assert_eq!((segments.all, segments.free, segments.in_use, segments.open), (40, 38, 2, 1));
    assert!(
        report.to_string().contains("40 of 64 KB: 38 free, 2 in use (1 open, 0 with a summary)"),
        "{report}"
    );
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["verdict"], "clean");
    assert_eq!(json["segments"]["in_use"], 2);
}

/// An unreadable sector costs only the data in it, and the report names the sector. A sector of a
/// meta also costs the records of its segment. The sectors are in a header, among records, in a
/// meta, in a copy of the superblock, and in unused space.
#[test]
fn unreadable_blocks_are_named_and_the_rest_is_checked() {
    let geometry = Image::new(40).superblock.geometry;
    let block = BLOCK as u64;
    for (at, lost) in [
        (geometry.segment(1), 2..3),
        (geometry.segment(1) + 2 * block, 2..4),
        (geometry.segment(1) + 12 * block, 0..1),
        (geometry.segment(3), 0..1),
        // The dead marks of this segment's records are unreadable.
        (geometry.meta(1, 0), 8..9),
        (geometry.meta(3, 0), 0..1),
        (SUPERBLOCKS[0], 0..1),
    ] {
        let image = Image::new(40);
        // Writes both copies of the superblock: every store that was ever used has both.
        let superblock = Superblock { counter: image.superblock.counter + 1, ..image.superblock };
        let mut copy = [0; BLOCK];
        for superblock in [image.superblock, superblock] {
            superblock.encode(&mut copy);
            image.device.write_at(SUPERBLOCKS[superblock.copy()], &copy).unwrap();
        }
        let (mut one, mut two) = (image.segment(1, 1), image.segment(2, 3));
        for n in 0..8 {
            image.item(&mut one, &n.to_string(), n + 1, &[b'v'; 3000]);
            if n == 3 {
                image.commit(&mut one, 1, DurableEnd::default(), false);
            }
        }
        image.commit(&mut one, 2, DurableEnd::default(), true);
        image.item(&mut two, "last", 9, b"value");
        image.commit(&mut two, 3, end(&one), false);
        [&one, &two].into_iter().for_each(|segment| image.write(segment));
        image.device.spoil(at..at + 1);
        let report = image.report();
        assert!(lost.contains(&(9 - report.live_items)), "{at}: {report}");
        let damaged = report.verdict == Verdict::Damaged;
        assert_eq!(damaged, !lost.contains(&0), "{at}: {report}");
        let named = format!("{block} bytes of the device at {at} cannot be read");
        assert!(report.notes.contains(&named), "{report}");
    }
}

#[test]
fn a_summary_that_contradicts_its_segment_is_damage() {
    let image = Image::new(3);
    let (one, _) = two_segments(&image);
    let superblock = &image.superblock;
    let place = SummaryPlace { identity: superblock.identity(), segment: 1, generation: 1 };
    let expect = Expect {
        identity: superblock.identity(),
        segment: 1,
        generation: None,
        extent: Extent::Unknown,
    };
    let mut entries = Vec::new();
    let scanned = scan::segment(&one.bytes, &expect, |at, record| {
        entries.extend(SummaryEntry::of(at, &record, superblock.hash_seed));
    })
    .unwrap();
    let summary = Summary {
        end: scanned.end,
        commit: scanned.last_commit,
        after_failure: false,
        seq_limit: scanned.seq_limit,
        durable: scanned.durable,
        expiries: (0, 0, true),
        entries,
    };
    let write = |summary: &Summary| {
        let bytes = summary.encode(&place);
        let end = superblock.geometry.segment(2);
        image.device.write_at(end - bytes.len() as u64, &bytes).unwrap();
    };
    write(&summary);
    let report = image.report();
    assert_eq!((report.verdict, report.segments.summarized), (Verdict::Clean, 1), "{report}");
    let mut wrong = summary.clone();
    wrong.entries[1].seq += 1;
    write(&wrong);
    assert_eq!(image.report().verdict, Verdict::Damaged);
    write(&summary);
    let last = superblock.geometry.segment_size() as usize - 1;
    image.flip(1, last);
    let report = image.report();
    assert_eq!((report.verdict, report.segments.summarized), (Verdict::Clean, 0), "{report}");
    assert!(report.to_string().contains("segment 1: its summary is not whole"), "{report}");
}

#[test]
fn dead_marks_fences_and_free_segments_end_items() {
    let mut image = Image::new(3);
    let (one, _) = two_segments(&image);
    // Finds the record of item `c`, whose seq is 3, to mark it dead.
    let at = one.bytes.windows(6).rposition(|bytes| bytes == [3, 0, 0, 0, 0, 0]).unwrap();
    image.write_meta_of(0, 1, Use::InUse { end: 0 }, &[at]);
    assert_eq!(image.report().live_items, 3, "the marks are of an earlier use");
    image.write_meta(1, Use::InUse { end: 0 }, &[at]);
    assert_eq!(image.report().live_items, 2);
    image.superblock.fence = 6;
    image.superblock.counter = 2;
    image.write_superblock();
    assert_eq!(image.report().live_items, 1);
    image.write_meta(2, Use::Free, &[]);
    let report = image.report();
    assert_eq!((report.live_items, report.segments.free), (0, 2));
    assert_eq!(report.verdict, Verdict::Clean, "{report}");
}

#[test]
fn a_last_commit_that_is_not_whole_is_torn() {
    let image = Image::new(3);
    let (_, two) = two_segments(&image);
    image.flip(2, two.bytes.len() - 80);
    let report = image.report();
    assert_eq!(report.verdict, Verdict::Torn, "{report}");
    assert_eq!(report.torn.len(), 1);
    assert_eq!((report.torn[0].segment, report.live_items), (2, 2));
    assert!(report.recovery[1].starts_with("drops "), "{report}");
}

#[test]
fn a_commit_that_was_durable_and_is_not_whole_is_damage() {
    for (segment, what) in [(1, "sealed"), (2, "followed by another")] {
        let image = Image::new(3);
        two_segments(&image);
        // Flips a byte. In segment 1, the byte is in the value of item `b`. In segment 2, it is in
        // the key of the newer record of item `a`.
        image.flip(segment, if segment == 1 { 500 } else { 64 + 15 });
        let report = image.report();
        assert_eq!(report.verdict, Verdict::Damaged, "{what}: {report}");
        assert_eq!(report.damaged.len(), 1, "{what}");
        assert_eq!((report.damaged[0].segment, report.damaged[0].records), (segment, 1), "{what}");
        assert_eq!(report.records, 5, "{what}");
    }
}

/// The tail of a commit proves that earlier commits were durable. If it is an early write, the last
/// of these may still have been under way. If an earlier commit has failed, the tail proves
/// nothing.
#[test]
fn a_tail_proves_as_many_commits_as_its_trailer_says() {
    for (commit, after_failure, early, proves) in [
        (5, false, false, true),
        (5, false, true, false),
        (6, false, true, true),
        (7, true, false, false),
    ] {
        let image = Image::new(3);
        let (_, two) = two_segments(&image);
        // Damages commit 4.
        image.flip(2, two.bytes.len() - 80);
        let covered = [0_u8; 24];
        let trailer = Trailer {
            generation: 1,
            length: covered.len() as u32,
            commit,
            durable: Default::default(),
            seq_limit: 1000,
            sealed: false,
            after_failure,
            early,
            continues: false,
        };
        let data = [&covered[..], &trailer.encode(&covered, image.seed(3))].concat();
        let tail = Tail { stream: 1, segment: 3, generation: 1, offset: 4096, commit };
        let mut place = [0; TAIL_BYTES];
        tail.encode(&data, &image.superblock.identity(), &mut place);
        image.device.write_at(image.superblock.geometry.tail_place(1, 0), &place).unwrap();
        let report = image.report();
        assert_eq!(report.verdict == Verdict::Damaged, proves, "{commit}: {report}");
    }
}

#[test]
fn a_tail_is_part_of_its_segment() {
    let image = Image::new(3);
    let (_, two) = two_segments(&image);
    // Erases the segment's own place, as if the segment's first block had not been full yet. Until
    // a block is full, only the tail place holds it.
    let place = image.superblock.geometry.segment(2);
    image.device.write_at(place, &vec![0; two.bytes.len()]).unwrap();
    assert_eq!(image.report().segments.in_use, 1);
    let tail = Tail { stream: 0, segment: 2, generation: 1, offset: 0, commit: 4 };
    let mut bytes = [0; TAIL_BYTES];
    tail.encode(&two.bytes, &image.superblock.identity(), &mut bytes);
    image.device.write_at(image.superblock.geometry.tail_place(0, 1), &bytes).unwrap();
    let report = image.report();
    assert_eq!((report.verdict, report.live_items), (Verdict::Clean, 3), "{report}");
}

/// Builds the store of [`two_segments`], with a jumbo in segments 3 to 5 that commit 5 wrote. Also
/// returns the jumbo's bytes.
fn with_jumbo() -> (Image, Vec<u8>) {
    let image = Image::new(6);
    two_segments(&image);
    let value: Vec<u8> = (0..150_000u32).map(|n| n as u8).collect();
    let mut header = image.segment(3, 5).header;
    header.stream = 1;
    header.jumbo = Some(JumboSize { value: value.len() as u64, parts: 3 });
    let mut bytes = header.encode(&image.superblock.identity()).to_vec();
    bytes.extend_from_slice(&image.head(3, 0, "large", 9, &value, 0xff_ffff));
    let covered = bytes.len();
    bytes.extend_from_slice(&value);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let trailer = Trailer {
        generation: 1,
        length: bytes.len() as u32,
        commit: 5,
        durable: Default::default(),
        seq_limit: 1000,
        sealed: true,
        after_failure: false,
        early: false,
        continues: false,
    };
    let trailer = trailer.encode(&bytes[..covered], image.seed(3));
    bytes.extend_from_slice(&trailer);
    for (index, piece) in bytes.chunks(SEGMENT as usize).enumerate() {
        // The pieces are not in ascending order on the device.
        let place = [3, 5, 4][index];
        image.device.write_at(image.superblock.geometry.segment(place), piece).unwrap();
        if index > 0 {
            let usage = Use::Part { owner: 3, owner_generation: 1, index: index as u32 };
            image.write_meta(place, usage, &[]);
        }
    }
    (image, bytes)
}

#[test]
fn a_damaged_jumbo_is_torn_until_later_commits_prove_it_durable() {
    let (image, bytes) = with_jumbo();
    let report = image.report();
    assert_eq!((report.verdict, report.live_items), (Verdict::Clean, 4), "{report}");
    let segments = report.segments;
    assert_eq!((segments.jumbos, segments.jumbo_parts, segments.free), (1, 2, 1));

    // Damages the value. The jumbo is torn, because no later commit proves that it was durable.
    image.flip(5, 1000);
    assert_eq!(image.report().verdict, Verdict::Torn);
    let mut six = image.segment(6, 6);
    image.item(&mut six, "z", 10, b"z");
    let durable = [DurableEnd::default(), DurableEnd { segment: 3, offset: bytes.len() as u32 }];
    image.commit(&mut six, 7, durable[0], false);
    image.write(&six);
    let report = image.report();
    assert_eq!(report.verdict, Verdict::Damaged, "{report}");
    assert!(report.to_string().contains("segment 3: the value of a large item"), "{report}");

    // Damages the head. The jumbo's other pieces still show that there was a jumbo.
    let (image, _) = with_jumbo();
    image.write(&six);
    image
        .device
        .spoil(image.superblock.geometry.segment(3)..image.superblock.geometry.segment(3) + 1);
    let report = image.report();
    assert_eq!(report.verdict, Verdict::Damaged, "{report}");
    assert!(report.to_string().contains("segment 3: the header of a large item"), "{report}");

    let (image, _) = with_jumbo();
    image.write_meta(4, Use::Retired, &[]);
    let report = image.report();
    assert_eq!((report.segments.retired, report.segments.jumbos), (1, 0), "{report}");

    let (image, _) = with_jumbo();
    image.write_meta(4, Use::Free, &[]);
    let report = image.report();
    assert_eq!((report.verdict, report.notes.len()), (Verdict::Clean, 1), "{report}");
    assert_eq!(report.segments.jumbos, 0);
}

#[test]
fn without_durability_a_crash_leaves_nothing() {
    let mut image = Image::new(3);
    two_segments(&image);
    (image.superblock.volatile, image.superblock.counter) = (true, 2);
    image.write_superblock();
    let report = image.report();
    assert_eq!(report.verdict, Verdict::Torn);
    assert!(report.recovery[0].starts_with("empties the store"), "{report}");
}

#[test]
fn a_device_without_a_superblock_is_unusable() {
    let device = SimDevice::new(1 << 20, 1);
    let unusable = |device: &SimDevice| match survey(device, &CLOCKS, &mut |_, _| {}) {
        Err(Unusable::Superblock(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(unusable(&device), "the device is empty");
    device.write_at(0, b"something else").unwrap();
    assert_eq!(unusable(&device), "there is something on it that is not a store");

    // One intact copy of the superblock must be enough.
    let mut image = Image::new(3);
    two_segments(&image);
    image.superblock.counter = 2;
    image.write_superblock();
    image.device.write_at(SUPERBLOCKS[0] + 100, &[0xff; 8]).unwrap();
    let report = image.report();
    assert_eq!(report.verdict, Verdict::Clean);
    assert!(report.notes[0].contains("copy 0 of the superblock"), "{report}");
    image.device.write_at(SUPERBLOCKS[1] + 100, &[0xff; 8]).unwrap();
    assert_eq!(unusable(&image.device), "both copies of its superblock are damaged");
}

#[test]
fn the_store_is_locked_but_not_opened_for_writing() {
    let image = Image::new(40);
    let mut bytes = vec![0; image.device.size() as usize];
    image.device.read_at(0, &mut bytes).unwrap();
    let file = std::env::temp_dir().join(format!("larder-check-read-{}", std::process::id()));
    std::fs::write(&file, &bytes).unwrap();

    let server = FileDevice::open(&file, None).unwrap();
    let refused = open(&file).err();
    assert!(matches!(refused, Some(CheckError::Open(OpenError::Locked { .. }))), "{refused:?}");
    drop(server);
    let (_, device) = open(&file).unwrap();
    assert_eq!(survey(&*device, &CLOCKS, &mut |_, _| ()).unwrap().verdict, Verdict::Clean);
    device.write_at(0, &[1; BLOCK]).unwrap_err();
    let refused = FileDevice::open(&file, None).unwrap_err();
    assert!(matches!(refused, OpenError::Locked { .. }), "{refused}");
    assert_eq!(std::fs::read(&file).unwrap(), bytes);
    std::fs::remove_file(&file).unwrap();
}
