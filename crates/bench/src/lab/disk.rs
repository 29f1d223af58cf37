//! The device that holds the servers' files: its file system, its free space, and the time of a
//! durable write.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use super::record::Disk;
use crate::{Error, Result};

/// Bytes per write.
const BLOCK: usize = 4096;
/// The largest number of writes that are measured.
const WRITES: usize = 300;
/// Time after which no further write begins.
const TIME: Duration = Duration::from_secs(2);

/// Measures a write of 4 KiB followed by `fdatasync` in `directory`.
pub(crate) fn measure(directory: &Path) -> Result<Disk> {
    let path = directory.join(format!("fsync-{}", std::process::id()));
    let times = sync_times(&path);
    // If the file could not be created, this removal fails too. `times` then has the error to
    // report.
    let _ = fs::remove_file(&path);
    let mut times = times.map_err(|e| Error::io(format!("cannot write {}", path.display()), e))?;
    times.sort_unstable();
    let at = |share: f64| {
        let rank = (times.len() as f64 * share).ceil() as usize;
        times.get(rank.saturating_sub(1)).map_or(0.0, |time| time.as_secs_f64() * 1e6)
    };
    Ok(Disk {
        directory: directory.display().to_string(),
        filesystem: filesystem(directory),
        fsync_us_p50: at(0.5),
        fsync_us_p99: at(0.99),
    })
}

fn sync_times(path: &Path) -> io::Result<Vec<Duration>> {
    let mut file = File::create(path)?;
    let block = [b'x'; BLOCK];
    // The measured writes overwrite these blocks. So each sync writes data only and no file size,
    // as in a preallocated log.
    for _ in 0..64 {
        file.write_all(&block)?;
    }
    file.sync_all()?;
    let began = Instant::now();
    let mut times = Vec::new();
    while times.is_empty() || (times.len() < WRITES && began.elapsed() < TIME) {
        file.seek(SeekFrom::Start((times.len() % 64 * BLOCK) as u64))?;
        let start = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        times.push(start.elapsed());
    }
    Ok(times)
}

/// Checks that the file system of a directory has space for the files of a server.
///
/// # Errors
/// Returns [`Error::Server`], with the required and the free space, if space is missing. Returns
/// [`Error::Io`] if the free space cannot be determined.
pub(crate) fn require_space(directory: &Path, mebibytes: u64) -> Result<()> {
    let free = free_bytes(directory).map_err(|e| {
        Error::io(format!("cannot ask for the space in {}", directory.display()), e)
    })?;
    match free {
        Some(free) if free >> 20 < mebibytes => Err(Error::server(format!(
            "this turn may need {mebibytes} MiB in {}, and {} MiB are free: free some space, then \
             the same command continues",
            directory.display(),
            free >> 20
        ))),
        _ => Ok(()),
    }
}

/// Returns the bytes that an unprivileged user can still store in a directory. Returns `None` if
/// its file system does not report them, as some file systems in user space do not.
fn free_bytes(directory: &Path) -> io::Result<Option<u64>> {
    let directory = File::open(directory)?;
    let mut found = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the kernel fills the structure behind the pointer and keeps no pointer.
    if unsafe { libc::fstatvfs(directory.as_raw_fd(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so the structure is filled.
    let found = unsafe { found.assume_init() };
    Ok((found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize)))
}

/// Returns the type of the file system that holds `directory`, or an empty text.
fn filesystem(directory: &Path) -> String {
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let rows = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    let inside = rows.filter(|(point, _)| directory.starts_with(point));
    inside.max_by_key(|(point, _)| point.len()).map_or(String::new(), |row| row.1.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_a_file_system_and_a_sync_time() {
        let disk = measure(&std::env::temp_dir()).unwrap();
        assert!(!disk.filesystem.is_empty());
        assert!(disk.fsync_us_p50 > 0.0 && disk.fsync_us_p99 >= disk.fsync_us_p50);
        assert!(measure(Path::new("/nowhere")).is_err());
    }

    #[test]
    fn missing_space_is_named() {
        let directory = std::env::temp_dir();
        require_space(&directory, 0).unwrap();
        let error = require_space(&directory, u64::MAX).unwrap_err().to_string();
        let expected = format!("MiB in {}, and ", directory.display());
        assert!(error.contains(&expected) && error.contains("MiB are free"), "{error}");
        assert!(require_space(Path::new("/nowhere"), 0).is_err());
    }
}
