//! What lies between a write and the medium: an operating system's page cache and a disk's write
//! cache, taken together.
//!
//! Each sector has the content that the medium holds and, on top of it, one version per write since
//! the last sync that covered it. A version is the sector's *whole* content after that write, as a
//! page cache has it: a sector comes to lie on the medium as it stood after some write, never as a
//! mixture of a later write and the lack of an earlier one. Which of its versions a sector ends up
//! with is independent of all other sectors: that is reordering. It never ends up with one older
//! than what a sync that succeeded left there.

use super::image::{Image, PAGE, Page};
use crate::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

/// What a disk writes as a whole, usually; a small part of the torn ones are cut inside.
pub(super) const SECTOR: usize = 512;

/// Sectors of a page.
const SECTORS: usize = PAGE / SECTOR;

/// A version of some sectors of a page.
#[derive(Clone)]
struct Version {
    write: u64,
    /// A bit for each sector that the write has changed and of which this still is an un-synced version.
    sectors: u8,
    /// The page after the write.
    page: Page,
}

impl Version {
    fn has(&self, sector: usize) -> bool {
        self.sectors & 1 << sector != 0
    }
}

/// Where in its page a sector lies.
fn range(sector: usize) -> Range<usize> {
    sector * SECTOR..(sector + 1) * SECTOR
}

/// The sectors of which there are versions.
fn pending(versions: &[Version]) -> impl Iterator<Item = usize> + use<> {
    let all = versions.iter().fold(0, |all, version| all | version.sectors);
    (0..SECTORS).filter(move |sector| all & 1 << sector != 0)
}

/// The newest of the versions of a sector.
fn newest(versions: &[Version], sector: usize) -> Option<&Version> {
    versions.iter().rfind(|version| version.has(sector))
}

/// Brings a sector of a page to what it is in a version of it.
fn put(image: &mut Image, page: u64, sector: usize, version: &Version) {
    let range = range(sector);
    image.write(page * PAGE as u64 + range.start as u64, &version.page[range]);
}

/// What becomes of one write in a power loss.
#[derive(Clone, Copy)]
enum Fate {
    Kept,
    Lost,
    Torn,
}

/// The medium, what reads see, and what lies between.
#[derive(Clone)]
pub(super) struct Cache {
    medium: Image,
    visible: Image,
    /// Page number to the versions of its sectors, oldest first; never an empty list.
    pending: BTreeMap<u64, Vec<Version>>,
    /// The number of the next write.
    next_write: u64,
    /// Growths that no sync has covered: their number among the writes, and the size before.
    growths: Vec<(u64, u64)>,
    /// A failed sync has lost a growth: the medium ends here although reads see more.
    lost: Option<u64>,
}

impl Cache {
    /// `medium` with nothing un-synced.
    pub(super) fn new(medium: Image) -> Cache {
        let visible = medium.clone();
        let (pending, growths) = (BTreeMap::new(), Vec::new());
        Cache { visible, medium, pending, next_write: 0, growths, lost: None }
    }

    pub(super) fn size(&self) -> u64 {
        self.visible.size()
    }

    /// Adds zeros at the end, un-synced.
    pub(super) fn lengthen(&mut self, size: u64) {
        self.growths.push((self.next_write, self.size()));
        self.next_write += 1;
        self.grow(size);
    }

    /// Takes back what was added at the end behind `size`, rounded up to whole pages.
    pub(super) fn shorten(&mut self, size: u64) {
        let size = size.next_multiple_of(PAGE as u64);
        self.medium.truncate(size);
        self.visible.truncate(size);
        drop(self.pending.split_off(&(size / PAGE as u64)));
        self.growths.retain(|&(_, before)| before < size);
        self.lost = self.lost.filter(|&lost| lost < size);
    }

    /// As whoever opens it anew finds it: no longer than the medium.
    pub(super) fn reopened(mut self) -> Cache {
        if let Some(lost) = self.lost {
            self.shorten(lost);
            self.lost = None;
        }
        self
    }

    /// Adds zeros at the end.
    pub(super) fn grow(&mut self, size: u64) {
        self.medium.grow(size);
        self.visible.grow(size);
    }

    /// The number that the next write will have: a sync called now covers those below it.
    pub(super) fn next_write(&self) -> u64 {
        self.next_write
    }

    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) {
        self.visible.read(offset, buffer);
    }

    /// Writes un-synced, as one write.
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

    /// Writes any part of `bytes`: a beginning, or any of its sectors.
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

    /// A sync that succeeds: writes with numbers below `covered` reach the medium.
    pub(super) fn sync(&mut self, covered: u64) {
        self.growths.retain(|&(number, _)| number >= covered);
        self.settle(covered, || Settled::Written);
    }

    /// A sync that fails: of every sector and growth it would have covered, the content reached the medium, or
    /// was dropped and will never reach it, or still waits for a later sync.
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

    /// The operating system gives up cached pages that it believes are on the medium: what a failed
    /// sync dropped now reads as it was before.
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

    /// The medium after a power loss.
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
                                // The power went while it was being written: nothing follows.
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

    /// Decides for whole writes first. Sectors that are all independent would hardly ever leave a
    /// long write whole, or the beginning of a sequence of writes and nothing behind it, which is
    /// what a disk that keeps the order does.
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

    /// Inverts a bit on the medium; reads see it unless the sector has un-synced content.
    pub(super) fn flip(&mut self, offset: u64, bit: u32) {
        self.medium.flip(offset, bit);
        let (page, sector) = (offset / PAGE as u64, offset as usize / SECTOR % SECTORS);
        let versions = self.pending.get(&page).into_iter().flatten();
        if !versions.into_iter().any(|version| version.has(sector)) {
            self.visible.flip(offset, bit);
        }
    }

    /// How many sectors have content that a power loss may take.
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
