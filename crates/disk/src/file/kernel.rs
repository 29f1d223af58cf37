//! Kernel calls on files that the standard library does not have.

use crate::ReadBuffer;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

/// Allocates the bytes from `length` to `size`; the file is `size` bytes long afterwards.
pub(super) fn allocate(file: &File, length: u64, size: u64) -> io::Result<()> {
    let too_large = |_| io::Error::from_raw_os_error(libc::EFBIG);
    let start = libc::off_t::try_from(length).map_err(too_large)?;
    let bytes = libc::off_t::try_from(size - length).map_err(too_large)?;
    loop {
        // SAFETY: takes numbers only; the descriptor is open as long as `file` is borrowed.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, start, bytes) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Whether the file system does not know how to allocate space ahead.
pub(super) fn cannot_allocate(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL))
}

/// What an unprivileged user can still allocate in the file's file system, bytes; `None` if it does
/// not say, as file systems in user space may not.
pub(super) fn free_bytes(file: &File) -> io::Result<Option<u64>> {
    let mut found = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the kernel fills the structure that the pointer leads to, and keeps no pointer.
    if unsafe { libc::fstatvfs(file.as_raw_fd(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has succeeded, so the structure is filled.
    let found = unsafe { found.assume_init() };
    Ok((found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize)))
}

/// Whether the file lies in memory (tmpfs, ramfs), and goes with the machine's next restart.
pub(super) fn is_in_memory(file: &File) -> bool {
    const RAMFS: i64 = 0x8584_58f6;
    let mut found = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel fills the structure that the pointer leads to, and keeps no pointer.
    if unsafe { libc::fstatfs(file.as_raw_fd(), found.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: the call has succeeded, so the structure is filled.
    let kind = unsafe { found.assume_init() }.f_type;
    [libc::TMPFS_MAGIC, RAMFS].contains(&kind)
}

/// Has reads of the file answer what is on its device where nothing waits to be written. Pages that could not be
/// written count as clean.
pub(super) fn forget_clean_pages(file: &File) {
    // It is an advice, so there is no error worth a reaction.
    // SAFETY: the descriptor is open, and the call touches no memory of this process.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

/// Opens the same file for reads and writes around the page cache; with what offsets, lengths and memory
/// of these must be multiples of, bytes.
pub(super) fn open_direct(file: &File) -> io::Result<(File, usize)> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let direct =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path)?;
    Ok((direct, direct_alignment(file).unwrap_or(MOST_ALIGNED)))
}

/// Whether the file's file system is one that notes which blocks of allocated space were written, and writes
/// them in their place ever after.
pub(super) fn notes_first_writes(file: &File) -> bool {
    let mut found = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel fills the structure that the pointer leads to, and keeps no pointer.
    if unsafe { libc::fstatfs(file.as_raw_fd(), found.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: the call has succeeded, so the structure is filled.
    let kind = unsafe { found.assume_init() }.f_type;
    [libc::EXT4_SUPER_MAGIC, libc::XFS_SUPER_MAGIC].contains(&kind)
}

/// Zeros that are written at once, bytes: others can use the device in between.
const ZEROS: usize = 256 << 10;

/// Writes zeros around the page cache. Both numbers are multiples of 4096.
pub(super) fn write_zeros(direct: &File, offset: u64, length: usize) -> io::Result<()> {
    let mut zeros = ReadBuffer::new(0, length.min(ZEROS), MOST_ALIGNED);
    zeros.bytes_mut().fill(0);
    (0..length).step_by(ZEROS).try_for_each(|at| {
        direct.write_all_at(&zeros[..ZEROS.min(length - at)], offset + at as u64)
    })
}

/// Every device is content with this alignment, bytes.
const MOST_ALIGNED: usize = 4096;

/// The alignment that the kernel names (Linux 6.1); files alone, not devices.
fn direct_alignment(file: &File) -> Option<usize> {
    let mut found = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let (flags, mask) = (libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN);
    // SAFETY: the path is an empty string, the kernel fills the structure and keeps no pointer.
    let result =
        unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), flags, mask, found.as_mut_ptr()) };
    // SAFETY: it was all zeros before, which is a valid value.
    let found = unsafe { found.assume_init() };
    if result != 0 || found.stx_mask & libc::STATX_DIOALIGN == 0 {
        return None;
    }
    let align = found.stx_dio_offset_align.max(found.stx_dio_mem_align) as usize;
    (align.is_power_of_two() && align <= MOST_ALIGNED).then_some(align.max(512))
}
