//! Why a device could not be opened. Every message names the path and what to do about it, because
//! it ends as the one line that an operator sees.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a device could not be opened. No byte that was there has been changed; a file that was to be
/// created may have been left behind empty.
#[derive(Debug)]
pub enum OpenError {
    /// Another process has the store open.
    Locked {
        /// The file or block device.
        path: PathBuf,
    },
    /// The block device is mounted, part of a volume, or another process has it for itself; the
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
    /// Neither directory, file nor block device.
    NotAPlace {
        /// What it was.
        path: PathBuf,
    },
    /// The content is not what the caller's check expects; see `FileDevice::open_checked`.
    Foreign {
        /// The file or block device.
        path: PathBuf,
    },
    /// An existing store is larger than the size asked for.
    Shrink {
        /// The file.
        path: PathBuf,
        /// Its length, bytes.
        existing: u64,
        /// The size asked for, bytes.
        asked: u64,
    },
    /// The block device is smaller than the size asked for.
    TooLarge {
        /// The block device.
        path: PathBuf,
        /// Its capacity, bytes.
        capacity: u64,
        /// The size asked for, bytes.
        asked: u64,
    },
    /// The size asked for is less than the smallest one.
    TooSmall {
        /// The file or block device.
        path: PathBuf,
        /// The size asked for, or the capacity of the block device, bytes.
        size: u64,
    },
    /// The file system has too little space.
    NoSpace {
        /// The file.
        path: PathBuf,
        /// What the file would need in addition to what it has, bytes.
        needed: u64,
        /// What is free, bytes.
        free: u64,
    },
    /// The operating system refused.
    Io {
        /// The file or block device.
        path: PathBuf,
        /// What was being done to it: "open", "lock".
        action: &'static str,
        /// The operating system's answer.
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
            OpenError::NotAPlace { path } => write!(
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
