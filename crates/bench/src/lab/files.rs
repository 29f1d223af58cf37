//! Writes the lab's reports. A report replaces only an earlier report or an empty file, which the
//! caller checks with [`require_result`] or [`require_page`]. A file is replaced as a whole: a
//! crash or a full device leaves the old file or the new one.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::report;
use crate::{Error, Result};

/// The fields by which the lab recognises its result files: every result file has them.
#[derive(Deserialize)]
struct Mark {
    #[serde(rename = "schema")]
    _schema: u64,
    #[serde(rename = "systems")]
    _systems: Vec<IgnoredAny>,
    #[serde(rename = "experiments")]
    _experiments: Vec<IgnoredAny>,
}

/// Checks that `path` may be written: nothing is there, or an empty file, a result file of the lab,
/// or a terminal, a pipe or the like.
///
/// # Errors
/// Returns [`Error::Usage`] for any other file, and [`Error::Io`] if the file cannot be read.
pub(crate) fn require_result(path: &Path) -> Result<()> {
    require(path, |text| serde_json::from_str::<Mark>(text).is_ok())
}

/// Checks that `path` may be written: nothing is there, or an empty file, a page of the lab, or a
/// terminal, a pipe or the like.
///
/// # Errors
/// Returns [`Error::Usage`] for any other file, and [`Error::Io`] if the file cannot be read.
pub(crate) fn require_page(path: &Path) -> Result<()> {
    require(path, |text| text.contains(report::MARK))
}

fn require(path: &Path, is_of_lab: impl Fn(&str) -> bool) -> Result<()> {
    let name = path.display();
    if is_device(path) {
        return Ok(());
    }
    let foreign = || {
        Error::usage(format!(
            "{name} is not a file of the lab: move it away, or name another place"
        ))
    };
    match fs::read(path) {
        Ok(bytes) => match std::str::from_utf8(&bytes) {
            Ok(text) if bytes.is_empty() || is_of_lab(text) => Ok(()),
            _ => Err(foreign()),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == ErrorKind::IsADirectory => Err(foreign()),
        Err(error) => Err(Error::io(format!("cannot read {name}"), error)),
    }
}

/// Writes a temporary file beside `path` and renames it to `path`. If `path` is a symbolic link,
/// the file that it points to is replaced. A terminal, a pipe or the like is written directly.
pub(crate) fn replace(path: &Path, text: &str) -> Result<()> {
    let failed = |e| Error::io(format!("cannot write {}", path.display()), e);
    if is_device(path) {
        return fs::write(path, text).map_err(failed);
    }
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let beside = beside(&target);
    let written = File::create(&beside).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, &target)
    });
    written.map_err(|error| {
        // If the temporary file could not be created, this removal fails too. `error` then has the
        // reason.
        let _ = fs::remove_file(&beside);
        failed(error)
    })
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    path.with_file_name(name)
}

/// Returns true for a terminal, a pipe or the like, which must not be replaced by a file.
fn is_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|facts| !facts.is_file() && !facts.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("larder-files-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn only_files_of_the_lab_are_replaced() {
        let directory = directory("marks");
        let (json, page) = (directory.join("report.json"), directory.join("report.html"));
        let both = || (require_result(&json), require_page(&page));
        assert!(matches!(both(), (Ok(()), Ok(()))), "there are no files");

        let result = r#"{"schema": 1, "systems": [], "experiments": [], "other": 2}"#;
        fs::write(&json, result).unwrap();
        fs::write(&page, report::html(result)).unwrap();
        assert!(matches!(both(), (Ok(()), Ok(()))));

        for foreign in ["{\"experiments\": 3}", "<!doctype html>mine", "{\"schema\": 1}"] {
            fs::write(&json, foreign).unwrap();
            fs::write(&page, foreign).unwrap();
            let (Err(of_json), Err(of_page)) = both() else { panic!("{foreign} was taken") };
            assert!(of_json.to_string().contains("report.json is not a file of the lab"));
            assert!(of_page.to_string().contains("report.html is not a file of the lab"));
        }
        fs::write(&page, [0xff]).unwrap();
        assert!(require_page(&page).is_err());
        assert!(require_page(&directory).is_err(), "a directory");
        assert!(require_page(Path::new("/dev/null")).is_ok());
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_or_not_at_all() {
        let directory = directory("whole");
        let (file, link) = (directory.join("report.html"), directory.join("link"));
        replace(&file, "one").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let before = fs::File::open(&file).unwrap();
        replace(&link, "two").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "two");
        assert!(link.is_symlink() && !file.is_symlink());
        // A reader that opened the old file before the replacement still reads all of it.
        assert_eq!(std::io::read_to_string(before).unwrap(), "one");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 2, "no other file stays");

        let taken = directory.join("taken");
        fs::create_dir_all(taken.join("inner")).unwrap();
        assert!(replace(&taken, "three").is_err());
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 3, "no other file stays");
        replace(Path::new("/dev/null"), "four").unwrap();
        assert!(!Path::new("/dev/null").is_file());
        fs::remove_dir_all(directory).unwrap();
    }
}
