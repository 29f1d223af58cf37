//! Memory from the operating system: large reserved regions for frames and index pages, and
//! separate mappings for jumbo segments.

use crate::sync;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Mutex;

/// The size of a page, in bytes: the unit in which the kernel gives and takes memory.
pub const PAGE: usize = 4096;
/// The size of a huge page, in bytes, which takes one entry of the processor's address cache (TLB).
pub const HUGE_PAGE: usize = 2 << 20;
/// `MADV_COLLAPSE` (Linux 6.1). The libc crate does not define it on every target.
const COLLAPSE: i32 = 25;
/// `MADV_DONTNEED_LOCKED` (Linux 5.18), for memory that is locked against swapping.
const DONTNEED_LOCKED: i32 = 24;

/// Rounds up to whole pages.
pub fn pages(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE)
}

fn map(bytes: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no existing
    // memory.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mmap answered null"))
}

/// Asks for huge pages, like [`Region::advise_huge`], for memory from the allocator. The memory
/// must not have been written, because the first write decides what pages it gets. Does nothing for
/// memory smaller than a huge page, because it shares its pages with other allocations.
pub fn advise_huge<T>(memory: &mut [MaybeUninit<T>]) {
    let bytes = size_of_val(memory);
    if bytes < HUGE_PAGE {
        return;
    }
    let start = memory.as_mut_ptr().cast::<u8>();
    let into_page = start.addr() % PAGE;
    // SAFETY: the pages hold this memory. The call is a hint and changes no contents, not even of
    // what lies before or behind it in the same pages.
    unsafe {
        let page = start.wrapping_sub(into_page);
        libc::madvise(page.cast(), pages(into_page + bytes), libc::MADV_HUGEPAGE);
    }
}

/// Makes the kernel allocate a huge page, and frees the page again. The caller then lets the kernel
/// join small pages into a huge page, most probably the one that was just freed.
///
/// While the kernel joins pages, it blocks all threads that use these pages. In a virtual machine,
/// the first touch of memory may take milliseconds, because the host must find memory for it. So
/// the huge page is touched here for the first time, and not while the kernel joins pages.
fn find_huge_page() {
    /// One search at a time is enough, however many threads join pages.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let Ok(_finding) = ONE_AT_A_TIME.try_lock() else { return };
    // If the reservation fails, nothing is lost but time: threads that use the joined pages may
    // have to wait for the host.
    if let Ok(region) = Region::reserve(HUGE_PAGE, HUGE_PAGE) {
        region.advise_huge();
        region.populate(0, HUGE_PAGE);
    }
}

/// Makes the operating system supply the memory of a range. Its contents stay as they are. A kernel
/// that does not know the advice (before 5.14) supplies the memory at the first touch instead.
///
/// # Safety
/// The range must be mapped.
unsafe fn populate(at: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller promises that the range is mapped, and the call changes no contents.
    unsafe { libc::madvise(at.as_ptr().cast(), bytes, libc::MADV_POPULATE_WRITE) };
}

/// A reserved range of addresses whose pages become resident when they are touched.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a region is an address range; its owner decides which thread may touch which part.
unsafe impl Send for Region {}
// SAFETY: as above; the methods only do arithmetic or call the kernel.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves `bytes`, aligned to `align` (a power of two, at least a page).
    pub fn reserve(bytes: usize, align: usize) -> io::Result<Self> {
        let total = bytes + align;
        let start = map(total)?;
        let pad = start.as_ptr().align_offset(align);
        // SAFETY: `pad < align`, so the aligned range of `bytes` lies inside the mapping. The two
        // ends that are unmapped are unused.
        unsafe {
            let base = start.add(pad);
            if pad > 0 {
                libc::munmap(start.as_ptr().cast(), pad);
            }
            libc::munmap(base.add(bytes).as_ptr().cast(), total - bytes - pad);
            Ok(Region { base, bytes })
        }
    }

    /// Asks for huge pages, which cause fewer TLB misses on random reads.
    pub fn advise_huge(&self) {
        // SAFETY: the range is this region's own; the call is a hint and changes no contents.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.bytes, libc::MADV_HUGEPAGE) };
    }

    /// Returns the pointer `offset` bytes into the region.
    ///
    /// # Panics
    /// If `offset` lies outside the region.
    #[inline]
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.bytes);
        // SAFETY: inside the region, as just checked.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns true if the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Makes the operating system supply the memory of a range now. If the host of a virtual
    /// machine must find this memory first, that takes milliseconds per huge page. That is too long
    /// for a thread that serves requests.
    pub fn populate(&self, offset: usize, bytes: usize) {
        assert!(offset + bytes <= self.bytes);
        // SAFETY: inside the region, as just checked.
        unsafe { populate(self.base.add(offset), bytes) };
    }

    /// Makes the kernel copy the pages from `offset`, a multiple of [`HUGE_PAGE`], into one huge
    /// page that replaces them. Pages that had no memory get some. The contents stay. Threads that
    /// touch these pages during the copy wait for about half a millisecond.
    ///
    /// # Errors
    /// The kernel's: `EINVAL` if it cannot join pages, others if it has no huge page now.
    pub fn join_pages(&self, offset: usize) -> io::Result<()> {
        assert!(offset.is_multiple_of(HUGE_PAGE) && offset + HUGE_PAGE <= self.bytes);
        find_huge_page();
        // SAFETY: inside the region, and its contents stay as they are.
        let done =
            unsafe { libc::madvise(self.base.as_ptr().add(offset).cast(), HUGE_PAGE, COLLAPSE) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Gives the pages of a range back to the kernel. The range reads as zeros afterwards. A kernel
    /// before 5.18 does not take back pages that are locked in memory. Then this function
    /// overwrites them with zeros.
    ///
    /// # Safety
    /// No thread may use the contents of the range.
    pub unsafe fn discard(&self, offset: usize, bytes: usize) {
        assert!(offset + bytes <= self.bytes);
        let at = self.at(offset);
        sync::discarded(at, bytes);
        // SAFETY: inside the region, and the caller promises that the contents are unused.
        let is_given = |advice| unsafe { libc::madvise(at.cast(), bytes, advice) } == 0;
        if !is_given(libc::MADV_DONTNEED) && !is_given(DONTNEED_LOCKED) {
            // SAFETY: as above.
            unsafe { at.write_bytes(0, bytes) };
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is this region's own and ends with it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// A separate mapping of whole pages.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is owned memory, like a boxed slice.
unsafe impl Send for Mapping {}
// SAFETY: as above. The methods only return the address and the length. Code that reads or writes
// the memory through the raw pointer has its own `SAFETY` reason.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps at least `bytes`, all zero.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let bytes = pages(bytes);
        Ok(Mapping { base: map(bytes)?, bytes })
    }

    /// Returns the length in bytes, a multiple of a page.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns true if the mapping has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Makes the operating system supply the memory of a range now, in one call. That takes less
    /// time than a page fault for each page.
    pub fn populate(&self, offset: usize, bytes: usize) {
        assert!(offset + bytes <= self.bytes);
        // SAFETY: inside the mapping, as just checked.
        unsafe { populate(self.base.add(offset), bytes) };
    }

    /// Returns a pointer to the first byte.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Gives up the mapping without unmapping it; [`Mapping::from_raw`] rebuilds it.
    pub fn into_raw(self) -> (*mut u8, usize) {
        let raw = (self.base.as_ptr(), self.bytes);
        std::mem::forget(self);
        raw
    }

    /// Rebuilds a mapping from its parts.
    ///
    /// # Safety
    /// The parts must come from one call of [`Mapping::into_raw`] and be used once.
    pub unsafe fn from_raw(base: *mut u8, bytes: usize) -> Self {
        // SAFETY: `into_raw` returned a non-null pointer.
        Mapping { base: unsafe { NonNull::new_unchecked(base) }, bytes }
    }

    /// Rebuilds the mapping of a jumbo from the raw parts that the jumbo's segment stores. `bytes`
    /// is the mapping's length, and `frame` is the address of the jumbo's record in it.
    ///
    /// # Safety
    /// The parts must be those of a jumbo's segment. No thread may still read the mapping, except
    /// through pins that take it over. This function must be called only once for each mapping.
    pub(crate) unsafe fn of_jumbo(frame: *mut u8, bytes: usize) -> Self {
        let base = frame.wrapping_sub(frame as usize % PAGE);
        // SAFETY: the record begins in the mapping's first page, so this is the base that
        // `into_raw` returned. By the caller's promise, it is taken back once.
        unsafe { Mapping::from_raw(base, bytes) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned, and nothing else unmaps it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn joined_pages_keep_their_contents_and_leak_no_memory() {
        let region = Region::reserve(2 * HUGE_PAGE, HUGE_PAGE).unwrap();
        // SAFETY: the region is this test's own, and `at` gives its only pointers.
        unsafe { region.at(0).write_bytes(7, HUGE_PAGE + PAGE) };
        let resident = || {
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            let pages = statm.split(' ').nth(1).unwrap();
            pages.parse::<usize>().unwrap() * PAGE
        };
        let before = resident();
        for turn in 0..16 {
            // A kernel before Linux 6.1 returns an error and leaves everything as it is.
            let _ = region.join_pages(turn % 2 * HUGE_PAGE);
        }
        // The bound is loose because other tests run at the same time.
        assert!(resident() < before + 8 * HUGE_PAGE, "joining pages leaks memory");
        // SAFETY: as above.
        let all = unsafe { std::slice::from_raw_parts(region.at(0), region.len()) };
        assert!(all[..HUGE_PAGE + PAGE].iter().all(|&byte| byte == 7));
        assert!(all[HUGE_PAGE + PAGE..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn discarded_pages_read_as_zeroes_even_where_they_are_locked() {
        let region = Region::reserve(4 * PAGE, PAGE).unwrap();
        for locked in [false, true] {
            // SAFETY: the region is this test's own, and `at` gives its only pointers.
            unsafe {
                region.at(0).write_bytes(7, region.len());
                if locked {
                    let result = libc::mlock(region.at(0).cast(), region.len());
                    assert_eq!(result, 0, "{}", io::Error::last_os_error());
                }
                region.discard(PAGE, 2 * PAGE);
                let page = |number: usize| *region.at(number * PAGE);
                assert_eq!([0, 1, 2, 3].map(page), [7, 0, 0, 7], "locked: {locked}");
            }
        }
    }
}
