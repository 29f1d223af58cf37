//! Why a device could not be opened. Every message names the path and the remedy, because it is the
//! one line that an operator sees.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a device could not be opened. Existing bytes are unchanged; a file that was to be created
/// may exist and be empty.
#[derive(Debug)]
pub enum OpenError {
    /// Another process has the store open.
    Locked {
        /// The file or block device.
        path: PathBuf,
    },
    /// The block device is mounted, part of a volume, or opened exclusively by another process; the
    /// kernel does not say which.
    Busy {
        /// The block device.
        path: PathBuf,
    },
    /// The directory that should hold the store does not exist.
    NoDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// The path is neither a directory nor a file nor a block device.
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The caller's check does not recognise the content; see `FileDevice::open_checked`.
    Foreign {
        /// The file or block device.
        path: PathBuf,
    },
    /// An existing store is larger than the requested size.
    Shrink {
        /// The file or block device.
        path: PathBuf,
        /// Its size, in bytes.
        existing: u64,
        /// The requested size, in bytes.
        asked: u64,
    },
    /// The block device is smaller than the requested size.
    TooLarge {
        /// The block device.
        path: PathBuf,
        /// Its capacity, in bytes.
        capacity: u64,
        /// The requested size, in bytes.
        asked: u64,
    },
    /// The requested size, or the size of an existing file or block device, is below the smallest
    /// allowed size.
    TooSmall {
        /// The file or block device.
        path: PathBuf,
        /// The size that is too small, in bytes.
        size: u64,
    },
    /// The file system has too little space.
    NoSpace {
        /// The file.
        path: PathBuf,
        /// The free space that is needed, in bytes. An existing file's own space is not in it.
        needed: u64,
        /// The free space, in bytes.
        free: u64,
    },
    /// The operating system returned an error.
    Io {
        /// The file or block device.
        path: PathBuf,
        /// The action that failed, as the verb of the message, such as "open" or "lock".
        action: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Locked { path } => {
                write!(f, "{}: another process uses this store: stop it first", path.display())
            }
            OpenError::Busy { path } => write!(
                f,
                "{}: this block device is in use, as another process's store, mounted or in a \
                 volume: release it, or name another",
                path.display()
            ),
            OpenError::NoDirectory { path } => {
                write!(f, "{}: no such directory: create it first", path.display())
            }
            OpenError::NotAFile { path } => write!(
                f,
                "{}: a store is a directory, a file or a block device, and this is none of them",
                path.display()
            ),
            OpenError::Foreign { path } => write!(
                f,
                "{}: this holds something that is not a store, and was left as it is: check the path",
                path.display()
            ),
            OpenError::Shrink { path, existing, asked } => write!(
                f,
                "{}: the store has {existing} bytes and cannot shrink to {asked}: ask for {existing} \
                 or more, or leave the size out",
                path.display()
            ),
            OpenError::TooLarge { path, capacity, asked } => write!(
                f,
                "{}: the block device has {capacity} bytes, not {asked}: ask for less, or leave the \
                 size out",
                path.display()
            ),
            OpenError::TooSmall { path, size } => write!(
                f,
                "{}: {size} bytes are too few for a store: at least {} are needed",
                path.display(),
                crate::file::MIN_SIZE
            ),
            OpenError::NoSpace { path, needed, free } => write!(
                f,
                "{}: {needed} bytes more are needed and {free} are free: free some, or ask for a \
                 smaller store",
                path.display()
            ),
            OpenError::Io { path, action, source } => {
                write!(f, "cannot {action} {}: {source}", path.display())
            }
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
