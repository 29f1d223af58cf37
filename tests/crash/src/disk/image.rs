//! One file of the test's file system, in three layers. The durable image survives a power failure.
//! The live image is what the server sees. The pending writes are those that no sync has made
//! durable. A pending write is doomed if a sync that covered it has failed.
//!
//! Invariant: the live image is the durable image with all pending writes applied in order. A
//! completed sync moves the pending writes that it covers into the durable image, except the doomed
//! ones. If such a move overwrites bytes of an earlier doomed write, these bytes leave the pending
//! writes. A truncation removes the bytes that it cuts off from them. A power failure removes all
//! pending writes.

use std::collections::{BTreeMap, HashMap};

use larder_disk::Random;

/// Number of bytes that a disk writes either completely or not at all.
pub(crate) const SECTOR: usize = 512;
/// Number of bytes that the kernel writes back together.
pub(crate) const BLOCK: usize = 4096;

/// The effect of a power failure on writes that no sync has covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// No write reached the disk.
    Nothing,
    /// Every write reached the disk.
    Everything,
    /// Each 4 KiB block holds one of the versions that it had since the last sync, chosen at
    /// random.
    Blocks,
    /// Each sector holds one of its versions, chosen at random, so blocks are torn.
    Sectors,
    /// A random write is torn. All earlier writes reached the disk, and no later one did.
    Prefix,
    /// A random write is torn. All later writes reached the disk, and no earlier one did.
    Suffix,
}

impl Cut {
    pub(crate) const ALL: [Cut; 6] =
        [Cut::Nothing, Cut::Everything, Cut::Blocks, Cut::Sectors, Cut::Prefix, Cut::Suffix];
}

/// Blocks by number. Missing blocks are zeros.
#[derive(Clone, Debug, Default)]
struct Sparse {
    blocks: HashMap<u64, Box<[u8; BLOCK]>>,
}

impl Sparse {
    fn read(&self, offset: u64, into: &mut [u8]) {
        for_each_block(offset, into.len(), |number, within, at, length| {
            let part = &mut into[at..at + length];
            match self.blocks.get(&number) {
                Some(block) => part.copy_from_slice(&block[within..within + length]),
                None => part.fill(0),
            }
        });
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        for_each_block(offset, bytes.len(), |number, within, at, length| {
            let block = self.blocks.entry(number).or_insert_with(|| Box::new([0; BLOCK]));
            block[within..within + length].copy_from_slice(&bytes[at..at + length]);
        });
    }

    /// Drops everything from offset `size` on, so that a later growth shows zeros.
    fn truncate(&mut self, size: u64) {
        let last = size / BLOCK as u64;
        self.blocks.retain(|number, _| *number <= last);
        if let Some(block) = self.blocks.get_mut(&last) {
            block[(size % BLOCK as u64) as usize..].fill(0);
        }
    }
}

/// Calls `visit(block number, offset in the block, offset in the range, length)` for each block
/// that a range touches.
fn for_each_block(offset: u64, length: usize, mut visit: impl FnMut(u64, usize, usize, usize)) {
    let mut at = 0;
    while at < length {
        let position = offset + at as u64;
        let within = (position % BLOCK as u64) as usize;
        let part = (BLOCK - within).min(length - at);
        visit(position / BLOCK as u64, within, at, part);
        at += part;
    }
}

/// A write that no sync has made durable.
#[derive(Clone, Debug)]
struct Pending {
    /// The write's number in the order of all writes to the file.
    number: u64,
    offset: u64,
    bytes: Vec<u8>,
    /// True if a sync that covered this write has failed. As on Linux, no later sync writes the
    /// data again, because the pages count as clean. In a power failure, chance decides whether the
    /// write is on the disk.
    doomed: bool,
}

/// One file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Image {
    durable: Sparse,
    durable_size: u64,
    live: Sparse,
    size: u64,
    pending: Vec<Pending>,
    writes: u64,
}

impl Image {
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Returns the number of bytes that a power failure now could lose.
    pub(crate) fn unsynced(&self) -> u64 {
        self.pending.iter().map(|write| write.bytes.len() as u64).sum()
    }

    /// Reads at most `length` bytes from `offset`.
    pub(crate) fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let there = self.size.saturating_sub(offset).min(length as u64) as usize;
        let mut bytes = vec![0; there];
        self.live.read(offset, &mut bytes);
        bytes
    }

    /// Copies the live image to a file, with holes where it is zero.
    pub(crate) fn save(&self, file: &std::fs::File) -> std::io::Result<()> {
        use std::os::unix::fs::FileExt;
        self.live
            .blocks
            .iter()
            .try_for_each(|(number, block)| file.write_all_at(&block[..], number * BLOCK as u64))?;
        file.set_len(self.size)
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.live.write(offset, bytes);
        self.size = self.size.max(offset + bytes.len() as u64);
        self.writes += 1;
        let bytes = bytes.to_vec();
        self.pending.push(Pending { number: self.writes, offset, bytes, doomed: false });
    }

    /// Changes the size. A truncation is durable at once. The server never shrinks its store, so
    /// simulating a lost truncation would test nothing.
    pub(crate) fn resize(&mut self, size: u64) {
        if size < self.size {
            self.live.truncate(size);
            self.durable.truncate(size);
            self.durable_size = self.durable_size.min(size);
            self.pending.retain_mut(|write| {
                write.bytes.truncate(size.saturating_sub(write.offset) as usize);
                !write.bytes.is_empty()
            });
        }
        self.size = size;
    }

    /// Returns the writes that a sync which begins now will cover.
    pub(crate) fn sync_begins(&self) -> Covered {
        Covered { writes: self.writes, size: self.size }
    }

    /// Applies a completed sync.
    pub(crate) fn sync_completed(&mut self, covered: Covered) {
        let mut rest = Vec::new();
        for write in std::mem::take(&mut self.pending) {
            if write.number > covered.writes {
                rest.push(write);
            } else if write.doomed {
                // This doomed write stays pending. A later write in this loop may overwrite a part
                // of its bytes. Then `overwrite` below removes this part from the doomed write.
                rest.push(write);
            } else {
                self.durable.write(write.offset, &write.bytes);
                overwrite(&mut rest, write.offset, write.bytes.len());
            }
        }
        self.pending = rest;
        self.durable_size = self.durable_size.max(covered.size.min(self.size));
    }

    /// Applies a failed sync. The writes that it covered may or may not be on the disk, and no
    /// later sync writes them again.
    pub(crate) fn sync_failed(&mut self, covered: Covered) {
        for write in &mut self.pending {
            write.doomed |= write.number <= covered.writes;
        }
    }

    /// Applies a power failure: the live image becomes what the disk holds afterwards.
    pub(crate) fn cut(&mut self, cut: Cut, random: &mut Random) {
        let pending = std::mem::take(&mut self.pending);
        let mut grew = 0;
        let mut keep = |durable: &mut Sparse, offset: u64, bytes: &[u8]| {
            durable.write(offset, bytes);
            grew = grew.max(offset + bytes.len() as u64);
        };
        match cut {
            Cut::Nothing => {}
            Cut::Everything => {
                for write in &pending {
                    keep(&mut self.durable, write.offset, &write.bytes);
                }
            }
            Cut::Prefix | Cut::Suffix => {
                let point = random.below(pending.len() as u64 + 1) as usize;
                for (number, write) in pending.iter().enumerate() {
                    let torn = random.below(write.bytes.len() as u64 + 1) as usize;
                    let torn = torn / SECTOR * SECTOR;
                    let bytes = match (cut, number.cmp(&point)) {
                        (Cut::Prefix, std::cmp::Ordering::Less)
                        | (Cut::Suffix, std::cmp::Ordering::Greater) => &write.bytes[..],
                        (_, std::cmp::Ordering::Equal) => &write.bytes[..torn],
                        _ => continue,
                    };
                    keep(&mut self.durable, write.offset, bytes);
                }
            }
            Cut::Blocks | Cut::Sectors => {
                let unit = if cut == Cut::Blocks { BLOCK } else { SECTOR };
                // The probability that the disk has written a unit, in percent.
                let percent = random.pick(&[5, 30, 50, 70, 95]);
                for (place, versions) in by_unit(&pending, unit) {
                    if random.chance(percent) {
                        let last = random.below(versions.len() as u64) as usize;
                        for (offset, bytes) in &versions[..=last] {
                            keep(&mut self.durable, place * unit as u64 + *offset as u64, bytes);
                        }
                    }
                }
            }
        }
        // A power failure may also take back a growth of the file that no sync covered. But the
        // file stays long enough for the writes that reached the disk.
        let grown = match cut {
            Cut::Nothing => false,
            Cut::Everything => true,
            _ => random.chance(50),
        };
        let size = if grown { self.size } else { self.durable_size.max(grew) };
        self.size = size.min(self.size);
        self.durable.truncate(self.size);
        self.durable_size = self.size;
        self.live = self.durable.clone();
    }
}

/// What a sync covers, fixed when the sync begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Covered {
    writes: u64,
    size: u64,
}

/// Removes from the doomed writes in the list the bytes that a later durable write has overwritten.
/// That write has the given offset and length.
fn overwrite(doomed: &mut Vec<Pending>, offset: u64, length: usize) {
    if doomed.is_empty() {
        return;
    }
    let end = offset + length as u64;
    let mut rest = Vec::new();
    for write in doomed.drain(..) {
        let (from, to) = (write.offset, write.offset + write.bytes.len() as u64);
        if !write.doomed || to <= offset || end <= from {
            rest.push(write);
            continue;
        }
        if from < offset {
            let bytes = write.bytes[..(offset - from) as usize].to_vec();
            rest.push(Pending { bytes, ..write.clone() });
        }
        if end < to {
            let bytes = write.bytes[(end - from) as usize..].to_vec();
            rest.push(Pending { offset: end, bytes, ..write });
        }
    }
    *doomed = rest;
}

/// The successive writes to one unit, oldest first: offset in the unit and bytes of each.
type Versions<'a> = Vec<(usize, &'a [u8])>;

/// Splits pending writes at the borders of units. Keeps the order of the writes to each unit.
fn by_unit(pending: &[Pending], unit: usize) -> BTreeMap<u64, Versions<'_>> {
    let mut units: BTreeMap<u64, Versions<'_>> = BTreeMap::new();
    for write in pending {
        let mut at = 0;
        while at < write.bytes.len() {
            let position = write.offset + at as u64;
            let within = (position % unit as u64) as usize;
            let part = (unit - within).min(write.bytes.len() - at);
            let versions = units.entry(position / unit as u64).or_default();
            versions.push((within, &write.bytes[at..at + part]));
            at += part;
        }
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    fn synced(bytes: &[u8]) -> Image {
        let mut image = Image::default();
        image.write(0, bytes);
        let covered = image.sync_begins();
        image.sync_completed(covered);
        image
    }

    #[test]
    fn writes_covered_by_a_sync_survive_every_cut() {
        for cut in Cut::ALL {
            for seed in 0..50 {
                let mut image = synced(&[7; 10_000]);
                image.write(20_000, &[9; 5_000]);
                image.cut(cut, &mut Random::new(seed));
                assert_eq!(image.read(0, 10_000), vec![7; 10_000], "{cut:?} seed {seed}");
            }
        }
    }

    #[test]
    fn a_sync_does_not_cover_writes_after_it_began() {
        let mut image = synced(&[1; 4096]);
        image.write(0, &[2; 4096]);
        let covered = image.sync_begins();
        image.write(0, &[3; 4096]);
        image.sync_completed(covered);
        assert_eq!(image.read(0, 1), [3]);
        assert_eq!(image.unsynced(), 4096);
        image.cut(Cut::Nothing, &mut Random::new(1));
        assert_eq!(image.read(0, 4096), vec![2; 4096]);
    }

    #[test]
    fn each_sector_is_one_of_its_versions_and_all_of_them_occur() {
        let mut seen = [false; 3];
        for seed in 0..200 {
            let mut image = synced(&[0; 8192]);
            image.write(0, &[1; 8192]);
            image.write(4096, &[2; 4096]);
            image.cut(Cut::Sectors, &mut Random::new(seed));
            for sector in image.read(0, 8192).chunks(SECTOR) {
                assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector was torn");
                seen[usize::from(sector[0])] = true;
            }
        }
        assert_eq!(seen, [true; 3]);
    }

    #[test]
    fn a_failed_sync_is_not_mended_by_a_later_one() {
        let mut image = synced(&[1; 8192]);
        image.write(0, &[2; 8192]);
        let covered = image.sync_begins();
        image.sync_failed(covered);
        // The second sync succeeds, but makes only the second write durable.
        image.write(4096, &[3; 1000]);
        let covered = image.sync_begins();
        image.sync_completed(covered);
        assert_eq!(image.read(0, 1), [2], "reads still see it");
        image.cut(Cut::Nothing, &mut Random::new(1));
        assert_eq!(image.read(0, 4096), vec![1; 4096]);
        assert_eq!(image.read(4096, 1000), vec![3; 1000]);
        assert_eq!(image.read(5096, 3096), vec![1; 3096]);
    }

    #[test]
    fn a_doomed_write_never_comes_back_over_a_later_durable_one() {
        for seed in 0..50 {
            let mut image = synced(&[1; 4096]);
            image.write(0, &[2; 4096]);
            let covered = image.sync_begins();
            image.sync_failed(covered);
            image.write(512, &[3; 512]);
            let covered = image.sync_begins();
            image.sync_completed(covered);
            image.cut(Cut::Everything, &mut Random::new(seed));
            assert_eq!(image.read(512, 512), vec![3; 512]);
            assert_eq!(image.read(0, 512), vec![2; 512]);
        }
    }

    #[test]
    fn a_size_that_no_sync_covered_may_be_lost() {
        let mut kept = 0;
        for seed in 0..100 {
            let mut image = synced(&[1; 4096]);
            image.resize(1 << 20);
            image.cut(Cut::Blocks, &mut Random::new(seed));
            assert!([4096, 1 << 20].contains(&image.size()), "{}", image.size());
            kept += u32::from(image.size() == 1 << 20);
        }
        assert!((20..80).contains(&kept), "{kept}");
        let mut image = synced(&[1; 4096]);
        image.resize(100);
        image.resize(200);
        assert_eq!(image.read(99, 10), [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn prefixes_keep_order_and_suffixes_break_it() {
        for (cut, newest_without_oldest) in [(Cut::Prefix, false), (Cut::Suffix, true)] {
            let mut found = false;
            for seed in 0..100 {
                let mut image = synced(&[0; 3 * 4096]);
                for number in 0..3u8 {
                    image.write(u64::from(number) * 4096, &[number + 1; 4096]);
                }
                image.cut(cut, &mut Random::new(seed));
                found |= image.read(2 * 4096, 1) == [3] && image.read(0, 1) == [0];
            }
            assert_eq!(found, newest_without_oldest, "{cut:?}");
        }
    }
}
