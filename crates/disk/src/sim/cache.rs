//! The layer between a write and the medium: the operating system's page cache and the disk's write
//! cache in one.
//!
//! Each sector has its content on the medium, and one version for each write since the last sync
//! that covered the sector. A version is the *whole* sector after a write, as in a page cache, so
//! it includes the bytes of all earlier writes. A crash keeps or loses each write as a whole, or
//! tears it, and then decides about each of its sectors. A later write may be kept and an earlier
//! one lost: that models reordering. Only a torn sector is a mixture: its first bytes are of one
//! version, the others of an older one. A crash never takes the content that a successful sync left
//! in a sector.

use super::image::{Image, PAGE, Page};
use crate::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

/// The unit in which a disk usually writes, in bytes. In a torn write, a few sectors keep only
/// their first bytes.
pub(super) const SECTOR: usize = 512;

/// Sectors per page.
const SECTORS: usize = PAGE / SECTOR;

/// A version of some sectors of a page.
#[derive(Clone)]
struct Version {
    write: u64,
    /// One bit per sector that the write changed. A sync clears a sector's bit when it writes the
    /// sector to the medium, or drops its content. It then clears the bit in all versions that it
    /// covers.
    sectors: u8,
    /// The page after the write.
    page: Page,
}

impl Version {
    fn has(&self, sector: usize) -> bool {
        self.sectors & 1 << sector != 0
    }
}

/// Returns the bytes of a sector within its page.
fn range(sector: usize) -> Range<usize> {
    sector * SECTOR..(sector + 1) * SECTOR
}

/// Returns the sectors that have versions.
fn pending(versions: &[Version]) -> impl Iterator<Item = usize> + use<> {
    let all = versions.iter().fold(0, |all, version| all | version.sectors);
    (0..SECTORS).filter(move |sector| all & 1 << sector != 0)
}

/// Returns the newest version of a sector.
fn newest(versions: &[Version], sector: usize) -> Option<&Version> {
    versions.iter().rfind(|version| version.has(sector))
}

/// Writes a sector's content in `version` to the image.
fn put(image: &mut Image, page: u64, sector: usize, version: &Version) {
    let range = range(sector);
    image.write(page * PAGE as u64 + range.start as u64, &version.page[range]);
}

/// The fate of one write in a power loss.
#[derive(Clone, Copy)]
enum Fate {
    Kept,
    Lost,
    Torn,
}

/// The contents of the medium, the contents that reads see, and the written versions that are not
/// synced yet.
#[derive(Clone)]
pub(super) struct Cache {
    medium: Image,
    visible: Image,
    /// Maps a page's number to the versions of the page's sectors, oldest first. No list is empty.
    pending: BTreeMap<u64, Vec<Version>>,
    /// The number of the next write.
    next_write: u64,
    /// Growths that no sync has covered. Of each: its number, which is counted together with the
    /// writes, and the size of the device before the growth.
    growths: Vec<(u64, u64)>,
    /// The size of the medium after a failed sync lost a growth; reads still see the larger size.
    lost: Option<u64>,
}

impl Cache {
    /// Creates a cache over `medium` with nothing un-synced.
    pub(super) fn new(medium: Image) -> Cache {
        let visible = medium.clone();
        let (pending, growths) = (BTreeMap::new(), Vec::new());
        Cache { visible, medium, pending, next_write: 0, growths, lost: None }
    }

    pub(super) fn size(&self) -> u64 {
        self.visible.size()
    }

    /// Grows the device by zeros at its end. The growth is not durable before the next sync.
    pub(super) fn lengthen(&mut self, size: u64) {
        self.growths.push((self.next_write, self.size()));
        self.next_write += 1;
        self.grow(size);
    }

    /// Undoes a growth back to `size`, rounded up to whole pages.
    pub(super) fn shorten(&mut self, size: u64) {
        let size = size.next_multiple_of(PAGE as u64);
        self.medium.truncate(size);
        self.visible.truncate(size);
        drop(self.pending.split_off(&(size / PAGE as u64)));
        self.growths.retain(|&(_, before)| before < size);
        self.lost = self.lost.filter(|&lost| lost < size);
    }

    /// Returns the cache after the device is opened anew. If a failed sync lost a growth, reads no
    /// longer see the bytes that the growth added.
    pub(super) fn reopened(mut self) -> Cache {
        if let Some(lost) = self.lost {
            self.shorten(lost);
            self.lost = None;
        }
        self
    }

    /// Adds zeros at the end. The new size is durable at once.
    pub(super) fn grow(&mut self, size: u64) {
        self.medium.grow(size);
        self.visible.grow(size);
    }

    /// Returns the number of the next write. A sync called now covers all lower numbers.
    pub(super) fn next_write(&self) -> u64 {
        self.next_write
    }

    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) {
        self.visible.read(offset, buffer);
    }

    /// Writes `bytes` un-synced, as one write.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.visible.write(offset, bytes);
        let (first, end) =
            (offset as usize / SECTOR, (offset as usize + bytes.len()).div_ceil(SECTOR));
        for page in first / SECTORS..end.div_ceil(SECTORS) {
            let of_page = |sector: usize| sector.clamp(page * SECTORS, (page + 1) * SECTORS);
            let sectors =
                (of_page(first)..of_page(end)).fold(0, |all, at| all | 1 << (at % SECTORS));
            let (write, page) = (self.next_write, page as u64);
            let version = Version { write, sectors, page: self.visible.page(page) };
            self.pending.entry(page).or_default().push(version);
        }
        self.next_write += 1;
    }

    /// Writes any part of `bytes`: a prefix, or any of its sectors.
    pub(super) fn write_part(&mut self, offset: u64, bytes: &[u8], random: &mut Random) {
        if random.chance(50) {
            let length = random.below(bytes.len() as u64 + 1) as usize;
            return self.write(offset, &bytes[..length]);
        }
        let mut at = 0;
        while at < bytes.len() {
            let sector_left = SECTOR - (offset as usize + at) % SECTOR;
            let length = sector_left.min(bytes.len() - at);
            if random.chance(50) {
                self.write(offset + at as u64, &bytes[at..at + length]);
            }
            at += length;
        }
    }

    /// Performs a successful sync: writes with numbers below `covered` reach the medium.
    pub(super) fn sync(&mut self, covered: u64) {
        self.growths.retain(|&(number, _)| number >= covered);
        self.settle(covered, || Settled::Written);
    }

    /// Performs a failed sync. Writes each covered sector and growth to the medium, drops it for
    /// good, or leaves it for a later sync.
    pub(super) fn fail_sync(&mut self, covered: u64, random: &mut Random) {
        let all = random.below(4);
        let mut how = || match if all < 3 { all } else { random.below(3) } {
            0 => Settled::Written,
            1 => Settled::Dropped,
            _ => Settled::Waiting,
        };
        let lost = &mut self.lost;
        self.growths.retain(|&(number, before)| {
            if number >= covered {
                return true;
            }
            let how = how();
            if matches!(how, Settled::Dropped) {
                *lost = Some(lost.map_or(before, |lost| lost.min(before)));
            }
            matches!(how, Settled::Waiting)
        });
        self.settle(covered, how);
    }

    fn settle(&mut self, covered: u64, mut how: impl FnMut() -> Settled) {
        let medium = &mut self.medium;
        self.pending.retain(|&page, versions| {
            let count = versions.partition_point(|version| version.write < covered);
            let old = &mut versions[..count];
            for sector in pending(old) {
                let how = how();
                if matches!(how, Settled::Waiting) {
                    continue;
                }
                if let (Settled::Written, Some(newest)) = (how, newest(old, sector)) {
                    put(medium, page, sector, newest);
                }
                old.iter_mut().for_each(|version| version.sectors &= !(1 << sector));
            }
            versions.retain(|version| version.sectors != 0);
            !versions.is_empty()
        });
    }

    /// Drops the cached pages that the operating system believes are on the medium. Where a failed
    /// sync dropped content, reads then return the older content.
    pub(super) fn drop_clean(&mut self) {
        self.visible = self.medium.clone();
        for (&page, versions) in &self.pending {
            for sector in pending(versions) {
                if let Some(newest) = newest(versions, sector) {
                    put(&mut self.visible, page, sector, newest);
                }
            }
        }
    }

    /// Returns the medium after a power loss.
    pub(super) fn crash(&self, random: &mut Random) -> Image {
        let mut medium = self.medium.clone();
        let fates = self.fates(random);
        for (&page, versions) in &self.pending {
            let mut after = *medium.page(page);
            for sector in pending(versions) {
                let content = &mut after[range(sector)];
                for Version { write, page, .. } in versions.iter().filter(|it| it.has(sector)) {
                    let bytes = &page[range(sector)];
                    match fates.get(write).copied().unwrap_or(Fate::Lost) {
                        Fate::Kept => content.copy_from_slice(bytes),
                        Fate::Lost => {}
                        Fate::Torn => match random.below(16) {
                            0 => {
                                // The power failed while the disk wrote this sector, so later
                                // versions of the sector are not written.
                                let cut = random.below(SECTOR as u64) as usize;
                                content[..cut].copy_from_slice(&bytes[..cut]);
                                break;
                            }
                            1..8 => content.copy_from_slice(bytes),
                            _ => {}
                        },
                    }
                }
            }
            medium.put_page(page, Page::new(after));
        }
        if let Some(&(_, before)) = self.growths.first()
            && random.chance(50)
        {
            medium.truncate(before);
        }
        if let Some(lost) = self.lost {
            medium.truncate(lost);
        }
        medium
    }

    /// Decides for each write as a whole whether a power loss keeps it. Only the sectors of a torn
    /// write are then decided one by one. If every sector were decided alone, a long write would
    /// hardly ever be kept as a whole. Sometimes keeps all writes up to some moment and none after
    /// it, as a disk that writes in order does. Independent decisions would hardly ever give that.
    fn fates(&self, random: &mut Random) -> BTreeMap<u64, Fate> {
        let writes: BTreeSet<u64> =
            self.pending.values().flatten().map(|version| version.write).collect();
        let in_order = random.chance(25);
        let torn_at = random.below(writes.len() as u64 + 1) as usize;
        let kept_percent = random.below(5) * 25;
        let torn_percent = random.below(3) * 20;
        writes
            .into_iter()
            .enumerate()
            .map(|(position, write)| {
                let fate = if in_order {
                    match position.cmp(&torn_at) {
                        std::cmp::Ordering::Less => Fate::Kept,
                        std::cmp::Ordering::Equal => Fate::Torn,
                        std::cmp::Ordering::Greater => Fate::Lost,
                    }
                } else if random.chance(torn_percent) {
                    Fate::Torn
                } else if random.chance(kept_percent) {
                    Fate::Kept
                } else {
                    Fate::Lost
                };
                (write, fate)
            })
            .collect()
    }

    /// Inverts a bit on the medium. Reads see the damage unless the sector has un-synced content.
    pub(super) fn flip(&mut self, offset: u64, bit: u32) {
        self.medium.flip(offset, bit);
        let (page, sector) = (offset / PAGE as u64, offset as usize / SECTOR % SECTORS);
        let versions = self.pending.get(&page).into_iter().flatten();
        if !versions.into_iter().any(|version| version.has(sector)) {
            self.visible.flip(offset, bit);
        }
    }

    /// Returns the number of sectors whose content a power loss may take.
    pub(super) fn unsynced_sectors(&self) -> usize {
        self.pending.values().map(|versions| pending(versions).count()).sum()
    }
}

/// What a sync did with the covered content of a sector.
enum Settled {
    Written,
    Dropped,
    Waiting,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("size", &self.size())
            .field("unsynced_sectors", &self.unsynced_sectors())
            .finish_non_exhaustive()
    }
}
