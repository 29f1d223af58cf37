//! A file or a block device.
//!
//! Most writes go through the page cache. Only large aligned writes, and the zeros of
//! [`Device::prepare`], may bypass it. `fdatasync` makes both kinds durable: it writes the cached
//! pages and flushes the drive's own cache. If the kernel writes fewer bytes than asked, further
//! calls write the rest. Opening a store locks it, so that no process writes to a store that
//! another process uses. Opening a file for writing also syncs the file and its directory, so that
//! a power loss cannot take the file's length or name and leave its content.
//!
//! The kernel gets no read-ahead advice. With `POSIX_FADV_RANDOM`, single 4 KiB reads were no
//! faster, because the kernel detects random reads itself. Reads of whole segments from a cold
//! cache took twice as long as without it.

mod kernel;
mod ring;
#[cfg(test)]
mod tests;

use crate::device::check_range;
use crate::{Device, OpenError, ReadBuffer, ReadQueue};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::iter;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{self, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The name of the store's file in a directory that is given as the store.
pub const FILE_NAME: &str = "larder.store";

/// The size of a new file if none is requested, in bytes.
pub const DEFAULT_SIZE: u64 = 1 << 30;
/// Without a requested size, a new file takes at most 1/`SHARE_OF_FREE` of the free space.
const SHARE_OF_FREE: u64 = 4;

/// The smallest size that this crate accepts, in bytes. Other crates may require more, depending on
/// the segment size.
pub(crate) const MIN_SIZE: u64 = 1 << 20;

/// Sizes are multiples of this number of bytes.
const GRAIN: u64 = 4096;

/// The largest range that one call allocates, in bytes. All writes to the file wait for that call.
const ALLOCATION_STEP: u64 = 256 << 20;

/// The smallest `read_at` and `write_directly` that bypass the page cache, in bytes. Smaller reads
/// and writes profit from the cache, which combines adjacent ones.
const DIRECT: usize = 64 << 10;

/// The number of bytes of an existing file that `open_checked` passes to the caller's check.
const HEAD: usize = 8192;

/// A file or block device that this process has locked.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    /// A descriptor of the same file that bypasses the page cache, and its alignment in bytes.
    /// `None` if the file system does not support this. The descriptor is opened together with
    /// `file`, because the process may drop its privileges later.
    direct: Option<(File, usize)>,
    /// True if the file system refused a large read or write that bypasses the page cache.
    refuses_direct: AtomicBool,
    /// True if the file system records which blocks of preallocated space have been written. Such a
    /// record makes a sync slower; see [`Device::prepare`].
    notes_first_writes: bool,
    target: Target,
    size: Arc<AtomicU64>,
    /// True if the size of the file has changed and the change may not be durable.
    grew: AtomicBool,
    is_new: bool,
}

impl FileDevice {
    /// Opens `path`: a directory (the store is the file [`FILE_NAME`] in it), a file, which is
    /// created if it is missing, or a block device. The file or device stays locked until this
    /// value is dropped.
    ///
    /// `size` is in bytes, rounded down to a multiple of 4096. A new file gets this size; without
    /// `size`, it gets [`DEFAULT_SIZE`], but at most a quarter of the free space in its file
    /// system. The space of a new file is allocated now, so that it cannot run out later. An
    /// existing file grows if `size` is larger, and otherwise keeps its size. Of a block device,
    /// the first `size` bytes are used; if `size` is `None`, all bytes are used.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: &Path, size: Option<u64>) -> Result<FileDevice, OpenError> {
        FileDevice::open_checked(path, size, DEFAULT_SIZE, |_| true)
    }

    /// Opens like [`open`](FileDevice::open), but first passes up to 8192 bytes from the beginning
    /// of a non-empty file or device to `is_ours`. If that returns `false`, this function fails
    /// with [`OpenError::Foreign`] before it changes anything. So a file that was named by mistake
    /// is not extended. `wanted` replaces [`DEFAULT_SIZE`].
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_checked(
        path: &Path,
        size: Option<u64>,
        wanted: u64,
        is_ours: impl FnOnce(&[u8]) -> bool,
    ) -> Result<FileDevice, OpenError> {
        let target = Target::find(path)?;
        let file = target.open(Access::Write)?;
        let length = target.length(&file)?;
        if length > 0 && !is_ours(&target.head(&file, length)?) {
            return Err(OpenError::Foreign { path: target.path });
        }
        let size = if target.is_block_device {
            target.part(length, size)?
        } else {
            target.settle(&file, length, size, wanted)?
        };
        Ok(FileDevice::new(file, target, size, length == 0, Access::Write))
    }

    /// Opens an existing file or block device for reading only, and changes nothing. This needs no
    /// permission to write. Several callers may have the same file open for reading, but only one
    /// the same block device. Meanwhile, [`open`](FileDevice::open) returns an error. Writes to the
    /// returned device return an error.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_to_read(path: &Path) -> Result<FileDevice, OpenError> {
        let target = Target::find(path)?;
        let file = target.open(Access::Read)?;
        let size = target.part(target.length(&file)?, None)?;
        Ok(FileDevice::new(file, target, size, false, Access::Read))
    }

    fn new(file: File, target: Target, size: u64, is_new: bool, access: Access) -> FileDevice {
        let direct = kernel::open_direct(&file, access == Access::Write).ok();
        let notes_first_writes = !target.is_block_device && kernel::notes_first_writes(&file);
        FileDevice {
            file,
            direct,
            refuses_direct: AtomicBool::new(false),
            notes_first_writes,
            target,
            size: Arc::new(AtomicU64::new(size)),
            grew: AtomicBool::new(false),
            is_new,
        }
    }

    /// Returns the path of the file or block device. If the caller gave a directory, this is the
    /// path of the store's file in it.
    pub fn path(&self) -> &Path {
        &self.target.path
    }

    fn grow_to(&self, size: u64) -> Result<(), OpenError> {
        let length = self.target.length(&self.file)?;
        let size = match self.target.is_block_device {
            true => self.target.part(length, Some(size))?,
            false => self.target.lengthen(&self.file, length, size)?,
        };
        let existing = self.size();
        if size < existing {
            return Err(OpenError::Shrink {
                path: self.target.path.clone(),
                existing,
                asked: size,
            });
        }
        self.grew.store(true, Ordering::Release);
        self.size.store(size, Ordering::Release);
        Ok(())
    }

    fn shrink_to(&self, size: u64) -> io::Result<()> {
        if size > self.size() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.size.store(size, Ordering::Release);
        if self.target.is_block_device {
            return Ok(());
        }
        let shrunk = self.file.set_len(size);
        self.grew.store(true, Ordering::Release);
        shrunk
    }

    /// Returns the descriptor that bypasses the page cache, if a read or write may use it. There
    /// must be at least [`DIRECT`] bytes, and their address, number and `offset` must be aligned.
    /// Bypassing the cache saves a copy.
    fn direct_for(&self, offset: u64, bytes: &[u8]) -> Option<&File> {
        let (direct, align) = self.direct.as_ref()?;
        let is_aligned = bytes.len().is_multiple_of(*align)
            && offset.is_multiple_of(*align as u64)
            && bytes.as_ptr().addr().is_multiple_of(*align);
        let refused = self.refuses_direct.load(Ordering::Relaxed);
        (bytes.len() >= DIRECT && is_aligned && !refused).then_some(direct)
    }

    /// Checks `answer`, the result of a read or write that bypassed the page cache. Returns `None`
    /// if the file system refused the alignment, and otherwise `answer`. Some file systems require
    /// a larger alignment than they report.
    fn unless_refused(&self, answer: io::Result<()>) -> Option<io::Result<()>> {
        let refused =
            answer.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL));
        if refused {
            self.refuses_direct.store(true, Ordering::Relaxed);
        }
        (!refused).then_some(answer)
    }

    /// Returns true if the file lies in memory and is lost when the machine restarts.
    pub fn is_in_memory(&self) -> bool {
        kernel::is_in_memory(&self.file)
    }

    /// Returns true if the file was created or was empty. A block device is never new.
    pub fn is_new(&self) -> bool {
        self.is_new
    }
}

impl Device for FileDevice {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        check_range(self.size(), offset, buffer.len())?;
        if let Some(direct) = self.direct_for(offset, buffer)
            && let Some(read) = self.unless_refused(direct.read_exact_at(buffer, offset))
        {
            return read;
        }
        self.file.read_exact_at(buffer, offset)
    }

    fn read_stored(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        check_range(self.size(), offset, buffer.len())?;
        if let Some((direct, align)) = &self.direct {
            let mut around = ReadBuffer::new(offset, buffer.len(), (*align).max(GRAIN as usize));
            let read = direct.read_exact_at(around.bytes_mut(), offset);
            buffer.copy_from_slice(&around);
            return read;
        }
        // Drops the clean pages of the file from the page cache, so that the kernel must read from
        // the device.
        kernel::forget_clean_pages(&self.file);
        self.file.read_exact_at(buffer, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        check_range(self.size(), offset, bytes.len())?;
        self.file.write_all_at(bytes, offset)
    }

    fn write_directly(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        check_range(self.size(), offset, bytes.len())?;
        if let Some(direct) = self.direct_for(offset, bytes)
            && let Some(written) = self.unless_refused(direct.write_all_at(bytes, offset))
        {
            return written;
        }
        self.file.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        let grew = self.grew.swap(false, Ordering::AcqRel);
        let synced = if grew { self.file.sync_all() } else { self.file.sync_data() };
        synced.inspect_err(|_| {
            self.grew.fetch_or(grew, Ordering::AcqRel);
            kernel::forget_clean_pages(&self.file);
        })
    }

    /// Allocates the space of the added bytes now, if this is a file. A block device must already
    /// have at least `size` bytes.
    fn grow(&self, size: u64) -> io::Result<()> {
        self.grow_to(size).map_err(io::Error::other)
    }

    fn shrink(&self, size: u64) -> io::Result<()> {
        self.shrink_to(size)
    }

    fn prepare(&self, offset: u64, length: usize) -> io::Result<usize> {
        check_range(self.size(), offset, length)?;
        match &self.direct {
            Some((direct, _)) if self.notes_first_writes => {
                kernel::write_zeros(direct, offset, length).map(|()| length)
            }
            _ => Ok(0),
        }
    }

    fn read_queue(&self, event: BorrowedFd<'_>) -> io::Result<Box<dyn ReadQueue>> {
        let (file, align) = match &self.direct {
            Some((direct, align)) => (direct, *align),
            None => (&self.file, size_of::<u64>()),
        };
        Ok(Box::new(ring::Ring::new(file, align, &self.size, event)?))
    }
}

/// What a path leads to. Finding this out creates, changes and locks nothing, and opens nothing for
/// writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathInfo {
    /// The file or block device. If the caller gave a directory, this is the store's file in it.
    pub path: PathBuf,
    /// The first bytes of the file or device (up to 8192); empty if it does not exist.
    pub head: Vec<u8>,
    /// The length of the file or device in bytes; 0 if it does not exist.
    pub length: u64,
    /// Identifies the file or block device on this machine; `None` if it does not exist.
    identity: Option<[u64; 3]>,
}

impl PathInfo {
    /// Examines what [`FileDevice::open`] would open.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn at(path: &Path) -> Result<PathInfo, OpenError> {
        let target = Target::find(path)?;
        let file = match File::open(&target.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(PathInfo {
                    path: target.path,
                    head: Vec::new(),
                    length: 0,
                    identity: None,
                });
            }
            Err(error) => return Err(target.io("open")(error)),
        };
        let metadata = file.metadata().map_err(target.io("measure"))?;
        // A block device may have several nodes, so its device number identifies it.
        let identity = match target.is_block_device {
            true => [1, metadata.rdev(), 0],
            false => [0, metadata.dev(), metadata.ino()],
        };
        let length = target.length(&file)?;
        let head = target.head(&file, length)?;
        Ok(PathInfo { path: target.path, head, length, identity: Some(identity) })
    }

    /// Returns true if both paths lead to the same file or block device.
    pub fn is_same(&self, other: &PathInfo) -> bool {
        match (self.identity, other.identity) {
            (Some(this), Some(other)) => this == other,
            (None, None) => path::absolute(&self.path).ok() == path::absolute(&other.path).ok(),
            _ => false,
        }
    }
}

/// The purpose for which a file or block device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

/// What a path leads to.
#[derive(Debug)]
struct Target {
    path: PathBuf,
    is_block_device: bool,
}

impl Target {
    fn find(path: &Path) -> Result<Target, OpenError> {
        let mut path = path.to_path_buf();
        let mut metadata = path.metadata();
        if metadata.as_ref().is_ok_and(|metadata| metadata.is_dir()) {
            path.push(FILE_NAME);
            metadata = path.metadata();
        }
        let is_block_device = match metadata {
            Ok(metadata) if metadata.is_file() => false,
            Ok(metadata) if metadata.file_type().is_block_device() => true,
            Ok(_) => return Err(OpenError::NotAFile { path }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A path that ends in a slash names a directory. A file needs an existing
                // directory.
                let slash = path.as_os_str().as_encoded_bytes().ends_with(b"/");
                let directory = if slash { path.clone() } else { directory_of(&path) };
                if slash || !directory.is_dir() {
                    return Err(OpenError::NoDirectory { path: directory });
                }
                false
            }
            Err(source) => return Err(OpenError::Io { path, action: "open", source }),
        };
        Ok(Target { path, is_block_device })
    }

    fn io(&self, action: &'static str) -> impl FnOnce(io::Error) -> OpenError {
        let path = self.path.clone();
        move |source| OpenError::Io { path, action, source }
    }

    /// Opens and locks the file or device. Creates a missing file if `access` is [`Access::Write`].
    /// The lock belongs to the open file, so the kernel releases it however the process ends.
    fn open(&self, access: Access) -> Result<File, OpenError> {
        let writes = access == Access::Write;
        let mut options = OpenOptions::new();
        options.read(true).write(writes);
        if self.is_block_device {
            // Without O_CREAT, O_EXCL claims the device itself, whichever node leads to it. The
            // kernel returns EBUSY if another process has claimed the device or the device is
            // mounted.
            options.custom_flags(libc::O_EXCL);
        } else if writes {
            options.create(true).mode(0o600);
        }
        let file = options.open(&self.path).map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY) => OpenError::Busy { path: self.path.clone() },
            _ => self.io("open")(error),
        })?;
        // On NFS, an exclusive lock needs a file that is open for writing.
        let locked = if writes { file.try_lock() } else { file.try_lock_shared() };
        match locked {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(OpenError::Locked { path: self.path.clone() }),
            Err(TryLockError::Error(source)) => Err(self.io("lock")(source)),
        }
    }

    fn length(&self, mut file: &File) -> Result<u64, OpenError> {
        // The metadata of a block device gives the length 0. Seeking to the end gives the length of
        // files and of block devices.
        io::Seek::seek(&mut file, io::SeekFrom::End(0)).map_err(self.io("measure"))
    }

    fn head(&self, file: &File, length: u64) -> Result<Vec<u8>, OpenError> {
        let mut head = vec![0; length.min(HEAD as u64) as usize];
        file.read_exact_at(&mut head, 0).map_err(self.io("read"))?;
        Ok(head)
    }

    /// Returns the number of bytes to use of a block device, or of a file that must not change.
    fn part(&self, capacity: u64, asked: Option<u64>) -> Result<u64, OpenError> {
        let path = || self.path.clone();
        let size = match asked {
            Some(asked) if asked > capacity => {
                return Err(OpenError::TooLarge { path: path(), capacity, asked });
            }
            Some(asked) => whole(asked),
            None => whole(capacity),
        };
        if size < MIN_SIZE {
            return Err(OpenError::TooSmall { path: path(), size });
        }
        Ok(size)
    }

    /// Gives a file its size and makes its name and size durable.
    fn settle(
        &self,
        file: &File,
        length: u64,
        asked: Option<u64>,
        wanted: u64,
    ) -> Result<u64, OpenError> {
        let path = || self.path.clone();
        let size = match asked {
            Some(asked) => whole(asked).max(whole(length)),
            None if length > 0 => whole(length),
            None => self.choose_size(file, wanted)?,
        };
        if size < MIN_SIZE {
            return Err(OpenError::TooSmall { path: path(), size });
        }
        let size = self.lengthen(file, length, size)?;
        // An existing file needs these syncs, too: the process that created it may have died before
        // its own syncs.
        file.sync_all().map_err(self.io("sync"))?;
        sync_directory(&directory_of(&self.path)).map_err(self.io("sync the directory of"))?;
        Ok(size)
    }

    /// Extends a file of `length` bytes to `asked` and returns its new size, which is not durable
    /// yet.
    fn lengthen(&self, file: &File, length: u64, asked: u64) -> Result<u64, OpenError> {
        let size = whole(asked);
        if size < whole(length) {
            let path = self.path.clone();
            return Err(OpenError::Shrink { path, existing: length, asked: size });
        }
        if size > length {
            self.allocate(file, length, size)?;
        }
        Ok(size)
    }

    /// Chooses the size of a new file if none is requested.
    fn choose_size(&self, file: &File, wanted: u64) -> Result<u64, OpenError> {
        let Some(free) = kernel::free_bytes(file).map_err(self.io("measure"))? else {
            let silent =
                io::Error::other("its file system does not report its free space: give a size");
            return Err(self.io("choose a size for")(silent));
        };
        default_size(free, wanted).ok_or_else(|| OpenError::NoSpace {
            path: self.path.clone(),
            needed: MIN_SIZE * SHARE_OF_FREE,
            free,
        })
    }

    /// Extends a file of `length` bytes to `size` and allocates the space of the added bytes. Only
    /// sets the length if the file system cannot allocate space in advance.
    fn allocate(&self, file: &File, length: u64, size: u64) -> Result<(), OpenError> {
        let no_space = |free| {
            let path = self.path.clone();
            OpenError::NoSpace { path, needed: size - length, free }
        };
        // The free space is checked first, because a failing attempt would briefly take all of it
        // from other processes.
        let free = kernel::free_bytes(file).map_err(self.io("measure"))?;
        if let Some(free) = free
            && free < size - length
        {
            return Err(no_space(free));
        }
        let allocated =
            steps(length, size).try_for_each(|step| kernel::allocate(file, step.start, step.end));
        let result = match allocated {
            Err(error) if kernel::cannot_allocate(&error) => file.set_len(size),
            result => result,
        };
        result.map_err(|error| {
            // Restores the old length. If even that fails, the first error is the one to report.
            let _ = file.set_len(length);
            match error.raw_os_error() {
                Some(libc::ENOSPC) => no_space(free.unwrap_or(0)),
                _ => self.io("allocate space for")(error),
            }
        })
    }
}

/// Splits the bytes from `length` to `size` into the ranges of the allocating calls.
fn steps(length: u64, size: u64) -> impl Iterator<Item = Range<u64>> {
    let starts = iter::successors(Some(length), |start| start.checked_add(ALLOCATION_STEP));
    starts
        .take_while(move |&start| start < size)
        .map(move |start| start..start.saturating_add(ALLOCATION_STEP).min(size))
}

/// Returns the smaller of `wanted` and the allowed share of the free space. Returns `None` if the
/// result would be below [`MIN_SIZE`].
fn default_size(free: u64, wanted: u64) -> Option<u64> {
    let size = whole(wanted.min(free / SHARE_OF_FREE));
    (size >= MIN_SIZE).then_some(size)
}

fn whole(bytes: u64) -> u64 {
    bytes - bytes % GRAIN
}

/// Returns the directory that contains `path`.
fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// Makes the names in a directory durable.
fn sync_directory(directory: &Path) -> io::Result<()> {
    match File::open(directory)?.sync_all() {
        // Some network and user-space file systems cannot sync directories and return EINVAL.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        result => result,
    }
}
