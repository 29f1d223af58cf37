//! A device for stores that are larger than the machine's memory and disk. It counts reads and
//! writes, and forgets most pages. Of a forgotten page, it keeps only the bytes that a start of the
//! engine needs: metas, and the beginning and end of each segment.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use larder_disk::Device;

const PAGE: u64 = 4096;
/// Number of bytes at the beginning of a segment that a start needs: the header.
const HEADER: usize = 64;
/// Number of bytes at the end of a segment that a start needs: the summary. A segment of cold items
/// holds two of them, so the summary has two entries.
const SUMMARY: usize = 128 + 2 * 24;

/// The kinds of pages in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageKind {
    /// The superblock and the other structures before the first meta.
    Store,
    Meta,
    /// The first page of a segment.
    Beginning,
    Middle,
    /// The last page of a segment.
    End,
}

impl PageKind {
    const ALL: usize = 5;

    /// Returns the kind of page at an offset of a store. `segment` is the segment size in bytes.
    /// Each copy of a meta occupies one page.
    fn at(offset: u64, segment: u64) -> PageKind {
        const GROUPS: u64 = 128 << 10;
        const GROUP: u64 = 16;
        let metas = 2 * GROUP * PAGE;
        let Some(behind) = offset.checked_sub(GROUPS) else { return PageKind::Store };
        let within = behind % (metas + GROUP * segment);
        let Some(of_segments) = within.checked_sub(metas) else { return PageKind::Meta };
        match of_segments % segment {
            begun if begun < PAGE => PageKind::Beginning,
            begun if begun >= segment - PAGE => PageKind::End,
            _ => PageKind::Middle,
        }
    }

    /// Returns the bytes of a page that a start needs; `None` if it needs none.
    fn needed(self, page: Box<[u8]>) -> Option<Box<[u8]>> {
        let needed = match self {
            PageKind::Store | PageKind::Meta => return Some(page),
            PageKind::Beginning => &page[..HEADER],
            PageKind::End => &page[page.len() - SUMMARY..],
            PageKind::Middle => return None,
        };
        Some(needed.into())
    }
}

/// The contents of the device: the pages that it remembers, and parts of those that it has
/// forgotten.
#[derive(Debug, Default)]
struct Pages {
    pages: HashMap<u64, Box<[u8]>>,
    /// For each forgotten page, the part that is kept because a start needs it.
    needed: HashMap<u64, Box<[u8]>>,
    /// The remembered pages that may be forgotten, in the order in which they entered `pages`. A
    /// further write to a remembered page does not change its position.
    written: VecDeque<u64>,
    /// A bit for each page that was ever written.
    known: Vec<u64>,
}

impl Pages {
    fn is_known(&self, page: u64) -> bool {
        let word = self.known.get(page as usize / 64).copied().unwrap_or(0);
        word >> (page % 64) & 1 != 0
    }

    fn note(&mut self, page: u64) {
        let word = page as usize / 64;
        if self.known.len() <= word {
            self.known.resize(word + 1, 0);
        }
        self.known[word] |= 1 << (page % 64);
    }
}

/// Counts of accesses to the device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Calls {
    pub(super) reads: u64,
    pub(super) bytes_read: u64,
    /// Number of reads and number of bytes read, by the [`PageKind`] at which a read began.
    by_kind: [(u64, u64); PageKind::ALL],
    pub(super) bytes_written: u64,
    /// Number of reads that failed because the device had forgotten a page.
    pub(super) forgotten: u64,
}

impl Calls {
    /// Returns the reads that began in pages of a kind since `before`, and the bytes that they
    /// read.
    pub(super) fn of(&self, kind: PageKind, before: &Calls) -> (u64, u64) {
        let (now, before) = (self.by_kind[kind as usize], before.by_kind[kind as usize]);
        (now.0 - before.0, now.1 - before.1)
    }
}

/// A device that forgets most of its pages.
#[derive(Debug)]
pub(super) struct ForgetfulDevice {
    size: AtomicU64,
    /// Segment size in bytes.
    segment: u64,
    /// If true, the bytes that a start needs are readable in forgotten pages too. The other bytes
    /// of such a page read as zeros.
    starts: AtomicBool,
    /// The number of pages at the beginning of the device that it never forgets.
    kept: u64,
    /// The largest number of pages that the device remembers besides its first `kept` pages.
    remembered: usize,
    pages: Mutex<Pages>,
    by_kind: [(AtomicU64, AtomicU64); PageKind::ALL],
    bytes_written: AtomicU64,
    forgotten: AtomicU64,
}

impl ForgetfulDevice {
    /// Returns a device filled with zeros, for a store with segments of `segment` bytes. The device
    /// never forgets its first `kept` bytes. Of the rest, it remembers `remembered` bytes, and
    /// forgets first what it has remembered longest.
    pub(super) fn new(size: u64, segment: u64, kept: u64, remembered: u64) -> Self {
        ForgetfulDevice {
            size: AtomicU64::new(size),
            segment,
            starts: AtomicBool::new(false),
            kept: kept / PAGE,
            remembered: (remembered / PAGE) as usize,
            pages: Mutex::default(),
            by_kind: Default::default(),
            bytes_written: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
        }
    }

    pub(super) fn calls(&self) -> Calls {
        let by_kind = self.by_kind.each_ref();
        let by_kind = by_kind
            .map(|(reads, bytes)| (reads.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed)));
        Calls {
            reads: by_kind.iter().map(|(reads, _)| reads).sum(),
            bytes_read: by_kind.iter().map(|(_, bytes)| bytes).sum(),
            by_kind,
            bytes_written: self.bytes_written.load(Ordering::Relaxed),
            forgotten: self.forgotten.load(Ordering::Relaxed),
        }
    }

    /// Makes the bytes that a start needs readable in all pages ever written.
    pub(super) fn let_start(&self) {
        self.starts.store(true, Ordering::Relaxed);
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Splits a range of the device into pages. Returns for each page its number, the offset in it, and
/// the matching range of the buffer.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % PAGE) as usize;
        let bytes = (len - done).min(PAGE as usize - within);
        let range = done..done + bytes;
        done += bytes;
        (bytes > 0).then_some((at / PAGE, within, range))
    })
}

impl Device for ForgetfulDevice {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let (reads, bytes_read) = &self.by_kind[PageKind::at(offset, self.segment) as usize];
        reads.fetch_add(1, Ordering::Relaxed);
        bytes_read.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        let starts = self.starts.load(Ordering::Relaxed);
        let pages = self.pages();
        for (page, within, range) in parts(offset, buffer.len()) {
            let part = &mut buffer[range];
            match pages.pages.get(&page) {
                Some(bytes) => part.copy_from_slice(&bytes[within..within + part.len()]),
                None if starts && pages.needed.contains_key(&page) => {
                    let (needed, mut whole) = (&pages.needed[&page], [0; PAGE as usize]);
                    match PageKind::at(page * PAGE, self.segment) {
                        PageKind::End => {
                            whole[PAGE as usize - needed.len()..].copy_from_slice(needed)
                        }
                        _ => whole[..needed.len()].copy_from_slice(needed),
                    }
                    part.copy_from_slice(&whole[within..within + part.len()]);
                }
                None if pages.is_known(page) => {
                    self.forgotten.fetch_add(1, Ordering::Relaxed);
                    return Err(io::Error::other("the device has forgotten that"));
                }
                None => part.fill(0),
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.bytes_written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let mut pages = self.pages();
        for (page, within, range) in parts(offset, bytes.len()) {
            let part = &bytes[range];
            let known = pages.pages.get_mut(&page);
            if let Some(known) = known {
                known[within..within + part.len()].copy_from_slice(part);
                continue;
            }
            let mut fresh = vec![0; PAGE as usize].into_boxed_slice();
            fresh[within..within + part.len()].copy_from_slice(part);
            pages.pages.insert(page, fresh);
            pages.note(page);
            if page >= self.kept {
                pages.written.push_back(page);
            }
        }
        while pages.written.len() > self.remembered {
            let Some(page) = pages.written.pop_front() else { break };
            let bytes = pages.pages.remove(&page);
            let kind = PageKind::at(page * PAGE, self.segment);
            match bytes.and_then(|bytes| kind.needed(bytes)) {
                Some(needed) => drop(pages.needed.insert(page, needed)),
                None => drop(pages.needed.remove(&page)),
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn grow(&self, size: u64) -> io::Result<()> {
        self.size.fetch_max(size, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_forgotten_segments_a_start_sees_the_beginning_and_the_end() {
        const SEGMENT: u64 = 64 << 10;
        let device = ForgetfulDevice::new(1 << 30, SEGMENT, 0, PAGE);
        let metas = (128 << 10) + 16 * (SEGMENT + 2 * PAGE);
        let segment = metas + 32 * PAGE + SEGMENT;
        for at in [metas, segment, segment + PAGE, segment + SEGMENT - PAGE, 0] {
            device.write_at(at, &[7; PAGE as usize]).unwrap();
        }
        let read = |at: u64, len: usize| {
            let mut bytes = vec![0; len];
            device.read_at(at, &mut bytes).map(|()| bytes)
        };
        assert!(read(segment, HEADER).is_err());
        device.let_start();
        assert_eq!(read(metas, PAGE as usize).unwrap(), [7; PAGE as usize]);
        assert_eq!(read(segment, HEADER).unwrap(), [7; HEADER]);
        assert_eq!(read(segment + SEGMENT - SUMMARY as u64, SUMMARY).unwrap(), [7; SUMMARY]);
        assert!(read(segment + PAGE, 1).is_err());
        let (calls, none) = (device.calls(), Calls::default());
        assert_eq!(calls.of(PageKind::Beginning, &none), (2, 2 * HEADER as u64));
        assert_eq!(calls.of(PageKind::End, &none), (1, SUMMARY as u64));
        assert_eq!(calls.of(PageKind::Meta, &none), (1, PAGE));
        assert_eq!((calls.reads, calls.of(PageKind::Middle, &none)), (5, (1, 1)));
    }

    #[test]
    fn it_forgets_the_oldest_writes() {
        let device = ForgetfulDevice::new(1 << 30, 64 << 10, PAGE, 2 * PAGE);
        for page in 0..4 {
            device.write_at(page * PAGE + 10, &[page as u8 + 1; 20]).unwrap();
        }
        let mut bytes = [0; 4];
        let mut read = |page| device.read_at(page * PAGE + 8, &mut bytes).map(|()| bytes);
        assert_eq!(read(0).unwrap(), [0, 0, 1, 1]);
        assert!(read(1).is_err());
        assert_eq!(read(2).unwrap(), [0, 0, 3, 3]);
        assert_eq!(read(3).unwrap(), [0, 0, 4, 4]);
        assert_eq!(read(9).unwrap(), [0; 4]);
        assert_eq!((device.calls().reads, device.calls().forgotten), (5, 1));
    }
}
