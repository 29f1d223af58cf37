//! The device that holds the servers' files: its file system, and the time of a durable write.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use super::record::Disk;
use crate::{Error, Result};

/// Bytes per write.
const BLOCK: usize = 4096;
/// The largest number of writes that are measured.
const WRITES: usize = 300;
/// The longest time of the measurement.
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
        let index = (times.len() as f64 * share) as usize;
        times.get(index.min(times.len() - 1)).map_or(0.0, |time| time.as_secs_f64() * 1e6)
    };
    Ok(Disk {
        directory: directory.display().to_string(),
        filesystem: filesystem(directory),
        fsync_us_p50: at(0.5),
        fsync_us_p99: at(0.99),
    })
}

fn sync_times(path: &Path) -> std::io::Result<Vec<Duration>> {
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
}
