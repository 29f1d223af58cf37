//! Scans of whole, cut, torn and damaged segments.

use super::image::{IDENTITY, Image, Piece, SEGMENT, SIZE, Written, example, item};
use crate::format::*;
use crate::record::{Fields, Kind};
use proptest::prelude::*;

#[test]
fn a_whole_segment_yields_every_record_and_none_of_earlier_generations() {
    let image = example();
    let (scanned, found) = Image::scan(&image.bytes, None, Extent::Unknown);
    let scanned = scanned.expect("a segment");
    assert_eq!(found, image.records);
    assert_eq!(scanned.header, Some(image.header));
    assert_eq!(scanned.records as usize, found.len());
    assert_eq!((scanned.end as usize, scanned.last_commit), (image.end(), 7));
    assert_eq!(scanned.seq_limit, 7000);
    assert_eq!(scanned.durable[0].offset as usize, image.commits[1].end);
    assert_eq!((scanned.ending, scanned.damage), (Ending::Open, Damage::default()));
}

#[test]
fn a_record_of_a_newer_kind_is_skipped_and_is_no_damage() {
    let mut image = Image::new(4);
    let fields = Fields { seq: 3, cas: Some(8), flags: 9, ..Fields::of_kind(Kind::Newer) };
    let newer = |key: &[u8]| Piece::Record {
        fields,
        key: key.to_vec(),
        value: b"whatever that is".to_vec(),
    };
    for piece in [newer(b"key"), item(11, b"a", b"value"), newer(b""), item(12, b"b", b"value")] {
        assert!(image.append(&piece));
    }
    image.commit(5, false);
    assert!(image.append(&item(13, b"c", b"")));
    image.commit(6, false);
    let items: Vec<Written> =
        image.records.iter().filter(|written| written.fields.kind == Kind::Item).cloned().collect();
    let (scanned, found) = Image::scan(&image.bytes, None, Extent::Unknown);
    let scanned = scanned.expect("a segment");
    assert_eq!((scanned.newer, scanned.records, scanned.damage), (2, 3, Damage::default()));
    assert_eq!(found, items);
    // In the first case an item is damaged, and both records of a newer kind are counted. In the
    // second case one of these two is damaged, so only the other is counted.
    for (at, newer, kept) in
        [(items[0].offset, 2, &items[1..]), (image.records[0].offset, 1, &items)]
    {
        let mut bytes = image.bytes.clone();
        bytes[at as usize + 3] ^= 1;
        let (scanned, found) = Image::scan(&bytes, None, Extent::Unknown);
        let scanned = scanned.expect("a segment");
        assert_eq!((scanned.newer, scanned.damage.gaps), (newer, 1));
        assert_eq!(found, kept);
    }
}

#[test]
fn a_sealed_trailer_ends_a_segment() {
    let mut image = example();
    image.append(&item(20, b"more", b""));
    image.commit(9, true);
    let (scanned, found) = Image::scan(&image.bytes, None, Extent::Unknown);
    assert_eq!(scanned.expect("a segment").ending, Ending::Sealed);
    assert_eq!(found, image.records);
}

#[test]
fn a_segment_cut_anywhere_keeps_exactly_the_commits_before_the_cut() {
    let image = example();
    for cut in 0..=image.end() {
        let zeroed = [&image.bytes[..cut], &vec![0; SIZE - cut]].concat();
        for bytes in [&image.bytes[..cut], &zeroed] {
            let (scanned, found) = Image::scan(bytes, None, Extent::Unknown);
            // In `zeroed`, all bytes behind the cut are zero. Bytes that were zero before are still
            // right. So the first wrong byte is the first one behind the cut that was not zero.
            let whole = if bytes.len() == cut { cut } else { real_cut(&image.bytes, cut) };
            assert_eq!(found, image.records_before(whole), "cut at {cut}");
            match scanned {
                Ok(scanned) => {
                    assert_eq!(scanned.damage, Damage::default(), "cut at {cut}");
                    let begun = scanned.end as usize;
                    assert!(begun <= whole.max(cut), "cut at {cut}");
                }
                Err(_) => assert!(cut < 64),
            }
        }
    }
}

/// Returns the end of the zero bytes that follow `cut`. Cutting there has the same effect as
/// writing zeros from `cut` on.
fn real_cut(bytes: &[u8], cut: usize) -> usize {
    cut + bytes[cut..].iter().take_while(|&&byte| byte == 0).count()
}

#[test]
fn one_changed_byte_loses_at_most_the_record_it_is_in() {
    let image = example();
    let mut bytes = image.bytes.clone();
    let end = image.end();
    for at in 0..end {
        for change in [0x01, 0x80, 0xFF] {
            bytes[at] ^= change;
            for extent in [Extent::Exactly(end as u32), Extent::AtLeast(end as u32)] {
                let (scanned, found) = Image::scan(&bytes, Some(4), extent);
                let scanned = scanned.expect("the generation is given");
                let expected: Vec<Written> =
                    image.records.iter().filter(|w| !w.vital().contains(&at)).cloned().collect();
                assert_eq!(found, expected, "byte {at} ^ {change:#x}");
                assert_eq!(scanned.damage.commits, 1, "byte {at}");
                assert_eq!(scanned.header.is_some(), at >= 64, "byte {at}");
                assert_eq!(scanned.end as usize, end, "byte {at}");
            }
            // Without prior knowledge, damage in the last commit looks like a torn commit. Damage
            // in earlier commits is recognised.
            let (scanned, found) = Image::scan(&bytes, Some(4), Extent::Unknown);
            let scanned = scanned.expect("the generation is given");
            let last = &image.commits[2];
            if at >= last.begin {
                assert_eq!(found, image.records_before(last.begin), "byte {at}");
                assert_eq!(scanned.damage, Damage::default());
                assert!(matches!(scanned.ending, Ending::Torn { dropped: 1.. } | Ending::Open));
            } else {
                let expected: Vec<Written> =
                    image.records.iter().filter(|w| !w.vital().contains(&at)).cloned().collect();
                assert_eq!(found, expected, "byte {at}");
                assert_eq!((scanned.damage.commits, scanned.last_commit), (1, 7), "byte {at}");
            }
            bytes[at] ^= change;
        }
    }
    assert_eq!(bytes, image.bytes);
}

#[test]
fn a_header_that_cannot_be_read_is_damage_and_not_absence() {
    let mut bytes = example().bytes;
    for at in 0..64 {
        bytes[at] ^= 0x10;
        let (scanned, found) = Image::scan(&bytes, None, Extent::Unknown);
        assert_eq!((scanned.err(), found.len()), (Some(NoSegment::Damaged), 0), "byte {at}");
        bytes[at] ^= 0x10;
    }
    let scan = |identity, segment| {
        let expect = Expect { identity, segment, generation: None, extent: Extent::Unknown };
        scan::segment(&bytes, &expect, |_, _| panic!("no record of this store")).err()
    };
    let other = Identity { store: !IDENTITY.store, checksum_seed: 5 };
    assert_eq!(scan(other, SEGMENT), Some(NoSegment::Absent));
    assert_eq!(scan(IDENTITY, SEGMENT + 1), Some(NoSegment::Absent), "a misdirected write");
    assert_eq!(Image::scan(&[0; SIZE], None, Extent::Unknown).0.err(), Some(NoSegment::Absent));
}

#[test]
fn records_behind_a_recorded_end_do_not_count() {
    let image = example();
    let end = image.commits[1].end;
    let (scanned, found) = Image::scan(&image.bytes, None, Extent::Exactly(end as u32));
    let scanned = scanned.expect("a segment");
    assert_eq!(found, image.records_before(end));
    assert_eq!((scanned.ending, scanned.last_commit), (Ending::Sealed, 6));
}

#[test]
fn commits_follow_each_other_in_number_and_place() {
    let whole = example();
    for (begin, number) in [(whole.end(), 7), (whole.end(), 3), (whole.commits[1].end, 8)] {
        let mut image = whole.clone();
        image.append(&item(20, b"no commit", b"of this segment"));
        image.commit_from(begin, number, true);
        let (scanned, found) = Image::scan(&image.bytes, None, Extent::Unknown);
        assert_eq!(found, whole.records);
        assert_eq!(scanned.expect("a segment").end as usize, whole.end());
        // If the whole segment is known to be durable, the scan returns every record with a valid
        // checksum. It still ignores the misplaced trailer.
        let (scanned, found) = Image::scan(&image.bytes, None, Extent::Sealed);
        let scanned = scanned.expect("a segment");
        assert_eq!(found, image.records);
        assert_eq!((scanned.last_commit, scanned.ending), (7, Ending::Open));
    }
}

/// Damages a commit that another commit follows. `flag` sets or clears a flag in the trailer of the
/// following commit. With the flag, that trailer proves nothing, so the damaged commit counts as
/// torn. Without the flag, it proves that the damaged commit was durable.
fn torn_before_a_trailer_with(flag: fn(&mut Image, bool)) {
    for flagged in [false, true] {
        let mut image = example();
        flag(&mut image, flagged);
        image.append(&item(20, b"written", b"next"));
        image.commit(9, false);
        let torn = image.commits[2].begin;
        image.bytes[torn + 20] ^= 1;
        let (scanned, found) = Image::scan(&image.bytes, None, Extent::Unknown);
        let scanned = scanned.expect("a segment");
        let outcome = (scanned.damage.commits, scanned.last_commit, scanned.proof);
        assert_eq!(outcome, if flagged { (0, 6, 6) } else { (1, 9, 9) });
        assert_eq!(found == image.records_before(torn), flagged);
    }
}

#[test]
fn a_commit_after_a_failed_one_proves_nothing_about_it() {
    torn_before_a_trailer_with(|image, flagged| image.after_failure = flagged);
}

#[test]
fn an_early_part_of_a_commit_proves_nothing_about_the_one_before() {
    torn_before_a_trailer_with(|image, flagged| image.early = flagged);
}

/// A commit has three parts. The middle part is damaged, with or without its trailer. From there
/// on, the commit counts as torn until a later commit proves that it was durable.
#[test]
fn parts_of_a_commit_are_torn_until_a_later_commit_is_seen() {
    for trailer_too in [false, true] {
        let mut image = example();
        for (part, early) in [(20, true), (21, true), (22, false)] {
            image.early = early;
            image.append(&item(part, b"part", b"of a commit"));
            image.commit(9, false);
        }
        let (scanned, found) = Image::scan(&image.bytes, None, Extent::Unknown);
        let scanned = scanned.expect("a segment");
        assert_eq!(found, image.records);
        assert_eq!((scanned.last_commit, scanned.proof), (9, 9));
        let middle = &image.commits[4];
        let (begin, end) = (middle.begin, middle.end);
        image.bytes[begin + 20] ^= 1;
        if trailer_too {
            image.bytes[end - 64..end].fill(0);
        }
        // An early part of the next commit proves nothing, so the damaged part still counts as
        // torn.
        image.early = true;
        image.append(&item(23, b"part", b"of the next one"));
        image.commit(10, false);
        let (scanned, found) = Image::scan(&image.bytes, None, Extent::Unknown);
        let scanned = scanned.expect("a segment");
        assert_eq!(found, image.records_before(begin));
        assert_eq!((scanned.damage.commits, scanned.end as usize), (0, begin));
        image.early = false;
        image.append(&item(24, b"end", b"of the next one"));
        image.commit(10, false);
        let (scanned, found) = Image::scan(&image.bytes, None, Extent::Unknown);
        let scanned = scanned.expect("a segment");
        assert_eq!((scanned.damage.commits, found.len()), (1, image.records.len() - 1));
        assert_eq!((scanned.last_commit, scanned.proof), (10, 10));
    }
}

/// Two of a commit's three parts are damaged, and one of them may have lost its trailer.
#[test]
fn damaged_parts_of_one_commit_count_once() {
    let mut image = example();
    for (part, early) in [(20, true), (21, true), (22, false)] {
        image.early = early;
        image.append(&item(part, b"part", b"of a commit"));
        image.commit(9, false);
    }
    image.append(&item(23, b"part", b"of the next one"));
    image.commit(10, false);
    let end = image.end() as u32;
    let commits = |bytes: &[u8]| {
        let (scanned, _) = Image::scan(bytes, None, Extent::AtLeast(end));
        scanned.expect("a segment").damage.commits
    };
    for damaged in [[3, 4], [4, 5], [3, 5]] {
        for lost in [None, Some(damaged[0]), Some(damaged[1])] {
            let mut bytes = image.bytes.clone();
            for part in damaged {
                bytes[image.commits[part].begin + 20] ^= 1;
            }
            if let Some(part) = lost {
                let trailer = image.commits[part].end - 64;
                bytes[trailer..trailer + 64].fill(0);
            }
            assert_eq!(commits(&bytes), 1, "{damaged:?} without the trailer of {lost:?}");
            bytes[image.commits[6].begin + 20] ^= 1;
            assert_eq!(commits(&bytes), 2, "{damaged:?} without the trailer of {lost:?}");
        }
    }
}

#[test]
fn a_lost_trailer_is_damage_once_a_later_commit_is_seen() {
    let mut image = example();
    let trailer = image.commits[1].end - 64;
    image.bytes[trailer..trailer + 64].fill(0);
    let (scanned, found) = Image::scan(&image.bytes, None, Extent::Unknown);
    let scanned = scanned.expect("a segment");
    assert_eq!(found, image.records);
    assert_eq!((scanned.damage.commits, scanned.damage.gaps, scanned.damage.bytes), (1, 1, 64));
    assert_eq!((scanned.last_commit, scanned.ending), (7, Ending::Open));
}

#[test]
fn a_sealed_segment_without_its_sealed_trailer_is_searched_to_its_end() {
    let mut image = example();
    image.append(&item(20, b"more", b"and more"));
    image.commit(9, true);
    let trailer = image.end() - 64;
    image.bytes[trailer + 20] ^= 1;
    let (scanned, found) = Image::scan(&image.bytes, None, Extent::Sealed);
    let scanned = scanned.expect("a segment");
    assert_eq!(found, image.records, "and nothing of the earlier use behind it");
    assert_eq!((scanned.ending, scanned.damage.commits), (Ending::Open, 1));
}

#[test]
fn values_that_look_like_records_neither_count_nor_stop_the_search() {
    // Every 16 bytes, the value contains the head of a record of 2 KiB. The search must reject all
    // these heads and still find the record behind the value.
    let mut value = Vec::new();
    while value.len() < 4096 {
        value.extend_from_slice(&[1, 0, 0, 0, 0, 0, 1, 0, 8, 0, 0, 0, 0, 0, 0, b'k']);
    }
    let mut image = Image::new(1);
    image.append(&item(1, b"before", b""));
    image.append(&item(2, b"trap", &value));
    image.append(&item(3, b"behind", b""));
    image.commit(1, true);
    let trap = &image.records[1];
    image.bytes[trap.vital().end - 1] ^= 1;
    let (scanned, found) = Image::scan(&image.bytes, None, Extent::Sealed);
    assert_eq!(found.iter().map(|w| w.fields.seq).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(scanned.expect("a segment").damage.gaps, 1);
}

fn piece() -> impl Strategy<Value = Piece> {
    let bits = any::<(bool, bool)>();
    let fields = (0..1u64 << 48, any::<Option<u64>>(), any::<u32>(), any::<u32>(), bits).prop_map(
        |(seq, cas, expiry, flags, (stale, inherits_reads))| Fields {
            kind: [Kind::Item, Kind::Counter, Kind::Limiter][seq as usize % 3],
            seq,
            cas,
            expiry,
            flags,
            stale,
            inherits_reads,
        },
    );
    let bytes = |from, to| proptest::collection::vec(any::<u8>(), from..to);
    prop_oneof![
        8 => (fields.clone(), bytes(1, 251), bytes(0, 300)).prop_map(|(fields, key, value)| {
            Piece::Record { fields, key, value }
        }),
        2 => (fields, bytes(1, 251)).prop_map(|(fields, key)| {
            let fields = Fields { kind: Kind::Tombstone, ..fields };
            Piece::Record { fields, key, value: Vec::new() }
        }),
        1 => (2usize..40).prop_map(|words| Piece::Filler(words * 8)),
    ]
}

fn segment() -> impl Strategy<Value = Image> {
    let commits = proptest::collection::vec(proptest::collection::vec(piece(), 1..6), 1..5);
    (commits, any::<u64>()).prop_map(|(commits, noise)| {
        // The segment is written over an earlier generation with records of another length.
        let mut old = Image::new(1);
        while old.append(&item(noise % 1000 + 1, b"old", &vec![1; (noise % 97) as usize])) {}
        old.commit(1, true);
        let mut image = Image::over(old.bytes, 2);
        for (number, pieces) in commits.iter().enumerate() {
            if pieces.iter().filter(|piece| image.append(piece)).count() == 0 {
                break;
            }
            image.commit(10 + number as u64, false);
        }
        image
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_written_record_is_read_back(image in segment()) {
        let (scanned, found) = Image::scan(&image.bytes, None, Extent::Unknown);
        prop_assert_eq!(&found, &image.records);
        let scanned = scanned.expect("a segment");
        prop_assert_eq!(scanned.end as usize, image.end());
        prop_assert_eq!(scanned.last_commit, image.commits.last().expect("commits").number);
    }

    /// Power loss during the last commit: some of its sectors are written, the others read as
    /// zeros. All earlier commits are whole and are read; the last commit is all or nothing.
    #[test]
    fn a_torn_commit_is_all_or_nothing(image in segment(), lost in any::<u64>()) {
        let last = image.commits.last().expect("commits").clone();
        let mut bytes = image.bytes.clone();
        let mut changed = false;
        for (sector, at) in (last.begin..last.end).step_by(512).enumerate() {
            if lost >> (sector % 64) & 1 == 1 {
                let sector = &mut bytes[at..(at + 512).min(last.end)];
                changed |= sector.iter().any(|&byte| byte != 0);
                sector.fill(0);
            }
        }
        let (scanned, found) = Image::scan(&bytes, None, Extent::Unknown);
        if !changed {
            prop_assert_eq!(found, image.records);
        } else {
            prop_assert_eq!(found, image.records_before(last.begin));
            if let Ok(scanned) = scanned {
                prop_assert_eq!(scanned.damage, Damage::default());
            }
        }
    }

    /// Changes any bytes in any way. With any prior knowledge, a scan returns only records that
    /// were written, and returns commits before the first change whole.
    #[test]
    fn damage_never_makes_records(
        image in segment(),
        changes in proptest::collection::vec((0..SIZE, any::<u8>(), 1usize..600), 1..6),
        extent in prop_oneof![
            Just(Extent::Unknown), Just(Extent::Sealed),
            (0..9000u32).prop_map(Extent::AtLeast), (0..9000u32).prop_map(Extent::Exactly),
        ],
    ) {
        let mut bytes = image.bytes.clone();
        for &(at, byte, length) in &changes {
            bytes[at..(at + length).min(SIZE)].fill(byte);
        }
        let first = image.bytes.iter().zip(&bytes).position(|(a, b)| a != b).unwrap_or(SIZE);
        let (_, found) = Image::scan(&bytes, Some(2), extent);
        for written in &found {
            prop_assert!(image.records.contains(written), "{written:?}");
        }
        let until = match extent {
            Extent::Exactly(end) => first.min(end as usize),
            _ => first,
        };
        for written in image.records_before(until) {
            prop_assert!(found.contains(&written), "{written:?} is missing");
        }
    }

    #[test]
    fn arbitrary_bytes_hold_no_records(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
        for extent in [Extent::Unknown, Extent::Sealed, Extent::AtLeast(99), Extent::Exactly(77)] {
            let (_, found) = Image::scan(&bytes, Some(1), extent);
            prop_assert_eq!(found, []);
        }
    }
}
