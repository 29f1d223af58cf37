//! The journal of a run: every point as it was measured, so that an interrupted run can go on.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::record::{NotRun, Point, Spot, SystemRow};
use crate::{Error, Result};

/// The points of a run on disk, a line each, so that an interrupted run can go on.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    entries: Vec<Entry>,
}

/// A line of the journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Entry {
    /// The first line: what the points belong to.
    Run(Identity),
    System(SystemRow),
    Point {
        experiment: String,
        point: Box<Point>,
    },
    NotRun {
        experiment: String,
        not_run: NotRun,
    },
}

/// A journal goes on only with the same identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) scale: String,
    pub(crate) build: String,
    pub(crate) machine: String,
}

impl Journal {
    /// Opens the journal in `directory`, or begins one.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] if the journal there belongs to another scale, build or machine.
    pub(crate) fn open(directory: &Path, identity: &Identity) -> Result<Journal> {
        let path = directory.join("journal.jsonl");
        let doing = || format!("cannot use the journal {}", path.display());
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(Error::io(doing(), error)),
        };
        // The last line may be cut off by a crash. A line that cannot be read is measured again.
        let complete = text.rfind('\n').map_or(0, |end| end + 1);
        let lines = text[..complete].lines().map(serde_json::from_str::<Entry>);
        let entries: Vec<Entry> = lines.filter_map(|entry| entry.ok()).collect();
        match entries.first() {
            Some(Entry::Run(found)) if found == identity => {}
            Some(Entry::Run(found)) => {
                return Err(Error::usage(format!(
                    "{} belongs to another run ({}, {}, {}): give another --out",
                    path.display(),
                    found.scale,
                    found.build,
                    found.machine
                )));
            }
            _ if text.is_empty() => {}
            _ => {
                let path = path.display();
                return Err(Error::usage(format!(
                    "{path} is not a journal of the lab: give another --out"
                )));
            }
        }
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let file = file.map_err(|e| Error::io(doing(), e))?;
        file.set_len(complete as u64).map_err(|e| Error::io(doing(), e))?;
        let mut journal = Journal { path, file, entries };
        if journal.entries.is_empty() {
            journal.append(Entry::Run(identity.clone()))?;
        }
        Ok(journal)
    }

    fn append(&mut self, entry: Entry) -> Result<()> {
        let doing = || format!("cannot write {}", self.path.display());
        let mut line = serde_json::to_string(&entry).map_err(|e| Error::io(doing(), e.into()))?;
        line.push('\n');
        self.file.write_all(line.as_bytes()).map_err(|e| Error::io(doing(), e))?;
        self.entries.push(entry);
        Ok(())
    }

    /// Returns true if the point was measured before.
    pub(crate) fn has(&self, experiment: &str, spot: &Spot) -> bool {
        self.points(experiment).any(|point| point.spot == *spot)
    }

    pub(crate) fn points(&self, experiment: &str) -> impl Iterator<Item = &Point> {
        self.entries.iter().filter_map(move |entry| match entry {
            Entry::Point { experiment: of, point } if of == experiment => Some(&**point),
            _ => None,
        })
    }

    pub(crate) fn add(&mut self, experiment: &str, point: Point) -> Result<()> {
        self.append(Entry::Point { experiment: experiment.to_owned(), point: Box::new(point) })
    }

    /// Notes that a system took part, once per version and settings.
    pub(crate) fn system(&mut self, row: SystemRow) -> Result<()> {
        let known = self.systems().any(|known| known.id == row.id);
        if known { Ok(()) } else { self.append(Entry::System(row)) }
    }

    pub(crate) fn systems(&self) -> impl Iterator<Item = &SystemRow> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::System(row) => Some(row),
            _ => None,
        })
    }

    /// Notes why a system has no points in an experiment. A later try replaces the reason.
    pub(crate) fn not_run(&mut self, experiment: &str, system: &str, why: String) -> Result<()> {
        let not_run = NotRun { system: system.to_owned(), why };
        self.append(Entry::NotRun { experiment: experiment.to_owned(), not_run })
    }

    pub(crate) fn all_not_run(&self, experiment: &str) -> Vec<NotRun> {
        let mut rows: BTreeMap<&str, &NotRun> = BTreeMap::new();
        for entry in &self.entries {
            match entry {
                Entry::NotRun { experiment: of, not_run } if of == experiment => {
                    rows.insert(&not_run.system, not_run);
                }
                _ => {}
            }
        }
        rows.into_values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::record::Figures;

    fn identity(scale: &str) -> Identity {
        Identity { scale: scale.into(), build: "b".into(), machine: "m".into() }
    }

    fn spot(round: usize) -> Spot {
        Spot { system: "redis".into(), case: "event".into(), x: Some(3.0), round }
    }

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("larder-lab-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn an_interrupted_journal_goes_on_where_it_ended() {
        let directory = directory("resume");
        let mut journal = Journal::open(&directory, &identity("small")).unwrap();
        let point = Point::new(spot(1), Figures { rate: 5.0, ..Figures::default() });
        journal.add("counter", point.with("missing_updates", 2.0)).unwrap();
        drop(journal);
        // A crash cuts off the last line.
        let path = directory.join("journal.jsonl");
        let mut text = fs::read_to_string(&path).unwrap();
        text.push_str("{\"point\":{\"experiment\":\"coun");
        fs::write(&path, text).unwrap();

        let mut journal = Journal::open(&directory, &identity("small")).unwrap();
        assert!(journal.has("counter", &spot(1)));
        assert!(!journal.has("counter", &spot(2)) && !journal.has("cliff", &spot(1)));
        journal.add("counter", Point::void(spot(2), "wrong".into())).unwrap();
        let journal = Journal::open(&directory, &identity("small")).unwrap();
        let points: Vec<&Point> = journal.points("counter").collect();
        assert_eq!(points.len(), 2);
        assert_eq!((points[0].figures.rate, points[0].extra["missing_updates"]), (5.0, 2.0));
        assert_eq!(points[1].void.as_deref(), Some("wrong"));
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_journal_of_another_run_is_refused() {
        let directory = directory("other");
        Journal::open(&directory, &identity("small")).unwrap();
        let error = Journal::open(&directory, &identity("full")).unwrap_err();
        assert!(error.to_string().contains("another run (small"), "{error}");
        let foreign = "{\"mine\": 1}\nno end";
        fs::write(directory.join("journal.jsonl"), foreign).unwrap();
        let error = Journal::open(&directory, &identity("small")).unwrap_err();
        assert!(error.to_string().contains("not a journal"), "{error}");
        assert_eq!(fs::read_to_string(directory.join("journal.jsonl")).unwrap(), foreign);
        fs::remove_dir_all(directory).unwrap();
    }
}
