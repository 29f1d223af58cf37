//! Kernel calls on files that the standard library lacks.

use crate::ReadBuffer;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

/// Allocates the bytes from `length` to `size`; the file then has `size` bytes.
pub(super) fn allocate(file: &File, length: u64, size: u64) -> io::Result<()> {
    let too_large = |_| io::Error::from_raw_os_error(libc::EFBIG);
    let start = libc::off_t::try_from(length).map_err(too_large)?;
    let bytes = libc::off_t::try_from(size - length).map_err(too_large)?;
    loop {
        // SAFETY: the call takes only numbers; the descriptor is open while `file` is borrowed.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, start, bytes) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Returns true if `error`, an error of [`allocate`], means that the file system cannot preallocate
/// space.
pub(super) fn cannot_allocate(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL))
}

/// Returns the space that an unprivileged user can still allocate in the file's file system, in
/// bytes; `None` if the file system does not report this, as some file systems in user space do
/// not.
pub(super) fn free_bytes(file: &File) -> io::Result<Option<u64>> {
    let mut found = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the kernel fills the structure behind the pointer and keeps no pointer.
    if unsafe { libc::fstatvfs(file.as_raw_fd(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so the structure is filled.
    let found = unsafe { found.assume_init() };
    Ok((found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize)))
}

/// Returns true if the file lies in memory (tmpfs, ramfs) and is lost when the machine restarts.
pub(super) fn is_in_memory(file: &File) -> bool {
    const RAMFS: i64 = 0x8584_58f6;
    let mut found = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel fills the structure behind the pointer and keeps no pointer.
    if unsafe { libc::fstatfs(file.as_raw_fd(), found.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: the call succeeded, so the structure is filled.
    let kind = unsafe { found.assume_init() }.f_type;
    [libc::TMPFS_MAGIC, RAMFS].contains(&kind)
}

/// Drops the file's clean pages from the page cache, so that reads return what is on the device.
/// Dirty pages stay. Pages that the kernel could not write count as clean.
pub(super) fn forget_clean_pages(file: &File) {
    // The call is only advice, so its errors are ignored.
    // SAFETY: the descriptor is open, and the call touches no memory of this process.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

/// Opens `file` again with a descriptor that bypasses the page cache: for reading, and for writing
/// if `writes` is true. Also returns the required alignment of offsets, lengths and memory, in
/// bytes.
pub(super) fn open_direct(file: &File, writes: bool) -> io::Result<(File, usize)> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let direct =
        OpenOptions::new().read(true).write(writes).custom_flags(libc::O_DIRECT).open(path)?;
    Ok((direct, direct_alignment(file).unwrap_or(MOST_ALIGNED)))
}

/// Returns true if the file system records which blocks of preallocated space have been written,
/// and overwrites blocks in place after that.
pub(super) fn notes_first_writes(file: &File) -> bool {
    let mut found = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel fills the structure behind the pointer and keeps no pointer.
    if unsafe { libc::fstatfs(file.as_raw_fd(), found.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: the call succeeded, so the structure is filled.
    let kind = unsafe { found.assume_init() }.f_type;
    [libc::EXT4_SUPER_MAGIC, libc::XFS_SUPER_MAGIC].contains(&kind)
}

/// The largest number of zeros per write, in bytes. Between two writes, other threads can use the
/// device.
const ZEROS: usize = 256 << 10;

/// Writes zeros, bypassing the page cache. `offset` and `length` are multiples of 4096.
pub(super) fn write_zeros(direct: &File, offset: u64, length: usize) -> io::Result<()> {
    let mut zeros = ReadBuffer::new(0, length.min(ZEROS), MOST_ALIGNED);
    zeros.bytes_mut().fill(0);
    (0..length).step_by(ZEROS).try_for_each(|at| {
        direct.write_all_at(&zeros[..ZEROS.min(length - at)], offset + at as u64)
    })
}

/// An alignment that every device accepts, in bytes.
const MOST_ALIGNED: usize = 4096;

/// Returns the alignment, in bytes, of reads and writes that bypass the page cache: at least 512.
/// Returns `None` if the kernel reports none, or one above [`MOST_ALIGNED`]. Linux reports it since
/// version 6.1, but not for every file system.
fn direct_alignment(file: &File) -> Option<usize> {
    let mut found = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let (flags, mask) = (libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN);
    // SAFETY: the path is an empty string; the kernel fills the structure and keeps no pointer.
    let result =
        unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), flags, mask, found.as_mut_ptr()) };
    // SAFETY: the structure was initialised with zeros, which are a valid value.
    let found = unsafe { found.assume_init() };
    if result != 0 || found.stx_mask & libc::STATX_DIOALIGN == 0 {
        return None;
    }
    let align = found.stx_dio_offset_align.max(found.stx_dio_mem_align) as usize;
    (align.is_power_of_two() && align <= MOST_ALIGNED).then_some(align.max(512))
}
