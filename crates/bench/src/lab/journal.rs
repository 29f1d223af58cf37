//! The journal of a run: a file with every measured point, so that an interrupted run can be
//! continued.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::record::{NotRun, Point, PointId, SystemRow};
use crate::{Error, Result};

/// The advice for a journal that this run cannot continue.
const ADVICE: &str = "give another --out, or remove the journal to measure everything again";

/// A journal file, one JSON line per entry, with its entries in memory.
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
    /// The first line: the run that the points belong to.
    Run(Identity),
    System(SystemRow),
    /// Settings of a system in one experiment, without those in earlier entries for the same system
    /// and experiment.
    Settings {
        experiment: String,
        system: String,
        lines: Vec<String>,
    },
    Point {
        experiment: String,
        point: Box<Point>,
    },
    NotRun {
        experiment: String,
        not_run: NotRun,
        /// The points of the system that could not be measured. Once a later run has measured all
        /// of them, the report leaves out `not_run`.
        #[serde(default)]
        owed: Vec<PointId>,
    },
}

/// The facts that must be equal for a run to continue a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) scale: String,
    pub(crate) build: String,
    pub(crate) machine: String,
    /// The absolute path of the servers' files. Journals of older versions do not have it.
    #[serde(default)]
    pub(crate) directory: String,
    /// The absolute path of the servers' files on a second device, or empty.
    #[serde(default)]
    pub(crate) second_directory: String,
    /// Each recorded trace with its name, counts and hash; empty if there are none.
    #[serde(default)]
    pub(crate) traces: String,
    /// `bounded` or `unbounded`: the lab may bound the page cache only with the rights for it.
    #[serde(default)]
    pub(crate) page_cache: String,
}

impl Identity {
    /// Describes the first field that differs from `this_run`, or returns `None` if all are equal.
    fn difference(&self, this_run: &Identity) -> Option<String> {
        let fields = |of: &Identity| {
            [
                ("scale", of.scale.clone()),
                ("build", of.build.clone()),
                ("machine", of.machine.clone()),
                ("--dir", of.directory.clone()),
                ("--second-dir", of.second_directory.clone()),
                ("--trace", of.traces.clone()),
                ("page cache", of.page_cache.clone()),
            ]
        };
        let mut pairs = fields(self).into_iter().zip(fields(this_run));
        let ((name, found), (_, wanted)) = pairs.find(|(found, wanted)| found != wanted)?;
        let shown = |text: String| if text.is_empty() { "none".to_owned() } else { text };
        Some(format!("its {name} is {}, not {}", shown(found), shown(wanted)))
    }
}

/// Locks the journal until this process closes the file or ends.
fn lock(file: &File, directory: &Path) -> Result<()> {
    let directory = directory.display();
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(Error::usage(format!(
            "another run writes to {directory}: wait for its end, or give another --out"
        ))),
        Err(TryLockError::Error(e)) => Err(Error::io(format!("cannot lock {directory}"), e)),
    }
}

impl Journal {
    /// Opens the journal in `directory`, or begins one.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] if the file there is not a journal or has another identity, or if
    /// another run uses it.
    pub(crate) fn open(directory: &Path, identity: &Identity) -> Result<Journal> {
        let path = directory.join("journal.jsonl");
        let doing = || format!("cannot use the journal {}", path.display());
        let file = OpenOptions::new().create(true).read(true).append(true).open(&path);
        let mut file = file.map_err(|e| Error::io(doing(), e))?;
        lock(&file, directory)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(|e| Error::io(doing(), e))?;
        // The last line may be cut off by a crash. A point whose line cannot be read is measured
        // again.
        let complete = text.rfind('\n').map_or(0, |end| end + 1);
        let lines = text[..complete].lines().map(serde_json::from_str::<Entry>);
        let entries: Vec<Entry> = lines.filter_map(|entry| entry.ok()).collect();
        match entries.first() {
            Some(Entry::Run(found)) => {
                if let Some(difference) = found.difference(identity) {
                    let path = path.display();
                    return Err(Error::usage(format!(
                        "{path} belongs to another run: {difference}; {ADVICE}"
                    )));
                }
            }
            _ if text.is_empty() => {}
            _ => {
                let path = path.display();
                return Err(Error::usage(format!(
                    "{path} is not a journal of the lab: give another --out"
                )));
            }
        }
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
        let end = self.file.metadata().map_err(|e| Error::io(doing(), e))?.len();
        self.file.write_all(line.as_bytes()).map_err(|e| {
            // An incomplete line would make the next entry unreadable too, so it is cut off.
            let _ = self.file.set_len(end);
            Error::io(doing(), e)
        })?;
        self.entries.push(entry);
        Ok(())
    }

    /// Returns true if the point was measured before.
    pub(crate) fn has(&self, experiment: &str, point_id: &PointId) -> bool {
        self.points(experiment).any(|point| point.id == *point_id)
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

    /// Notes that a system took part in an experiment, with its settings there. An experiment of
    /// several parts can start a system with different settings. The journal keeps all of them.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] if the journal has points of another version of the system.
    pub(crate) fn system(&mut self, experiment: &str, row: SystemRow) -> Result<()> {
        self.require_version(&row.id, &row.version)?;
        let known = self.settings(experiment).remove(&row.id).unwrap_or_default();
        let mut lines = row.settings.clone();
        lines.retain(|line| !known.contains(line));
        if !lines.is_empty() {
            let (experiment, system) = (experiment.to_owned(), row.id.clone());
            self.append(Entry::Settings { experiment, system, lines })?;
        }
        let known = self.systems().any(|known| known.id == row.id);
        if known { Ok(()) } else { self.append(Entry::System(row)) }
    }

    /// Returns the settings of each system in an experiment, by the id of the system.
    pub(crate) fn settings(&self, experiment: &str) -> BTreeMap<String, Vec<String>> {
        let mut settings: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for entry in &self.entries {
            match entry {
                Entry::Settings { experiment: of, system, lines } if of == experiment => {
                    settings.entry(system.clone()).or_default().extend(lines.iter().cloned());
                }
                _ => {}
            }
        }
        settings
    }

    /// Checks that the journal has no other version of `system` than `version`, because a report
    /// must not mix versions.
    ///
    /// # Errors
    /// Returns [`Error::Usage`], with both versions, if the journal has another version.
    pub(crate) fn require_version(&self, system: &str, version: &str) -> Result<()> {
        let other = |known: &&SystemRow| known.id == system && known.version != version;
        match self.systems().find(other) {
            None => Ok(()),
            Some(SystemRow { name, version: known, .. }) => Err(Error::usage(format!(
                "{} has points of {name} {known}, but {version} is here: {ADVICE}",
                self.path.display()
            ))),
        }
    }

    pub(crate) fn systems(&self) -> impl Iterator<Item = &SystemRow> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::System(row) => Some(row),
            _ => None,
        })
    }

    /// Notes why the points `owed` of a system could not be measured.
    pub(crate) fn not_run(
        &mut self,
        experiment: &str,
        system: &str,
        why: String,
        owed: Vec<PointId>,
    ) -> Result<()> {
        let not_run = NotRun { system: system.to_owned(), why };
        self.append(Entry::NotRun { experiment: experiment.to_owned(), not_run, owed })
    }

    /// Returns true if a turn that failed owes this point.
    pub(crate) fn is_owed(&self, experiment: &str, point_id: &PointId) -> bool {
        self.entries.iter().any(|entry| match entry {
            Entry::NotRun { experiment: of, owed, .. } => {
                of == experiment && owed.contains(point_id)
            }
            _ => false,
        })
    }

    /// Returns for each system the last noted reason why points are missing. Leaves out a reason
    /// once the journal has all the points that the reason names.
    pub(crate) fn all_not_run(&self, experiment: &str) -> Vec<NotRun> {
        let mut rows: BTreeMap<&str, &NotRun> = BTreeMap::new();
        for entry in &self.entries {
            match entry {
                Entry::NotRun { experiment: of, not_run, owed } if of == experiment => {
                    let is_missing = |point_id| !self.has(experiment, point_id);
                    if owed.is_empty() || owed.iter().any(is_missing) {
                        rows.insert(&not_run.system, not_run);
                    }
                }
                _ => {}
            }
        }
        rows.into_values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::lab::record::Figures;

    fn identity(scale: &str) -> Identity {
        Identity {
            scale: scale.into(),
            build: "b".into(),
            machine: "m".into(),
            directory: "/one".into(),
            page_cache: "unbounded".into(),
            ..Identity::default()
        }
    }

    fn point_id(round: usize) -> PointId {
        PointId { system: "redis".into(), case: "event".into(), x: Some(3.0), round }
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
        let point = Point::new(point_id(1), Figures { rate: 5.0, ..Figures::default() });
        journal.add("counter", point.with("missing_updates", 2.0)).unwrap();
        drop(journal);
        // Appends an incomplete line, as a crash may leave it.
        let path = directory.join("journal.jsonl");
        let mut text = fs::read_to_string(&path).unwrap();
        text.push_str("{\"point\":{\"experiment\":\"coun");
        fs::write(&path, text).unwrap();

        let mut journal = Journal::open(&directory, &identity("small")).unwrap();
        assert!(journal.has("counter", &point_id(1)));
        assert!(!journal.has("counter", &point_id(2)) && !journal.has("cliff", &point_id(1)));
        journal.add("counter", Point::void(point_id(2), "wrong".into())).unwrap();
        drop(journal);
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
        let difference = "another run: its scale is small, not full; give another --out";
        assert!(error.to_string().contains(difference), "{error}");
        let elsewhere = Identity { directory: "/other".into(), ..identity("small") };
        let error = Journal::open(&directory, &elsewhere).unwrap_err();
        assert!(error.to_string().contains("its --dir is /one, not /other"), "{error}");
        let two = Identity { second_directory: "/two".into(), ..identity("small") };
        let error = Journal::open(&directory, &two).unwrap_err();
        assert!(error.to_string().contains("its --second-dir is none, not /two"), "{error}");
        let traces = Identity { traces: "one (5 requests, 9 bytes)".into(), ..identity("small") };
        let error = Journal::open(&directory, &traces).unwrap_err();
        assert!(error.to_string().contains("its --trace is none, not one (5 req"), "{error}");
        let built = Identity { build: "c".into(), ..identity("small") };
        let error = Journal::open(&directory, &built).unwrap_err();
        assert!(error.to_string().contains("its build is b, not c"), "{error}");
        let confined = Identity { page_cache: "bounded".into(), ..identity("small") };
        let error = Journal::open(&directory, &confined).unwrap_err();
        assert!(error.to_string().contains("its page cache is unbounded, not bounded"), "{error}");
        let foreign = "{\"mine\": 1}\nno end";
        fs::write(directory.join("journal.jsonl"), foreign).unwrap();
        let error = Journal::open(&directory, &identity("small")).unwrap_err();
        assert!(error.to_string().contains("not a journal"), "{error}");
        assert_eq!(fs::read_to_string(directory.join("journal.jsonl")).unwrap(), foreign);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn two_runs_do_not_share_a_journal() {
        let directory = directory("lock");
        let first = Journal::open(&directory, &identity("small")).unwrap();
        let error = Journal::open(&directory, &identity("small")).unwrap_err();
        assert!(error.to_string().contains("another run writes to"), "{error}");
        drop(first);
        Journal::open(&directory, &identity("small")).unwrap();
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_journal_without_directories_is_refused() {
        let directory = directory("old");
        let old = r#"{"run":{"scale":"small","build":"b","machine":"m"}}"#;
        fs::write(directory.join("journal.jsonl"), format!("{old}\n")).unwrap();
        let error = Journal::open(&directory, &identity("small")).unwrap_err();
        assert!(error.to_string().contains("its --dir is none, not /one"), "{error}");
        fs::remove_dir_all(directory).unwrap();
    }

    fn row(version: &str) -> SystemRow {
        SystemRow {
            id: "redis".into(),
            name: "Redis".into(),
            family: "Redis".into(),
            durability: "none".into(),
            version: version.into(),
            stand_in: None,
            settings: vec!["-t 2".into()],
        }
    }

    #[test]
    fn two_versions_of_a_system_are_not_mixed() {
        let directory = directory("versions");
        let mut journal = Journal::open(&directory, &identity("small")).unwrap();
        journal.require_version("redis", "7").unwrap();
        journal.system("counter", row("7")).unwrap();
        journal.system("counter", row("7")).unwrap();
        drop(journal);
        let mut journal = Journal::open(&directory, &identity("small")).unwrap();
        journal.require_version("redis", "7").unwrap();
        let error = journal.require_version("redis", "8").unwrap_err().to_string();
        assert!(error.contains("points of Redis 7, but 8 is here: give another --out"), "{error}");
        assert!(journal.system("counter", row("8")).is_err());
        assert_eq!(journal.systems().count(), 1);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn each_experiment_has_its_settings() {
        let directory = directory("settings");
        let mut journal = Journal::open(&directory, &identity("small")).unwrap();
        let with = |line: &str| SystemRow {
            settings: vec![line.into(), "-t 2: threads".into()],
            ..row("7")
        };
        for (experiment, line) in
            [("counter", "-m 256"), ("fit", "-m 128"), ("fit", "-m 48"), ("counter", "-m 256")]
        {
            journal.system(experiment, with(line)).unwrap();
        }
        drop(journal);
        let journal = Journal::open(&directory, &identity("small")).unwrap();
        assert_eq!(journal.settings("counter")["redis"], ["-m 256", "-t 2: threads"]);
        assert_eq!(journal.settings("fit")["redis"], ["-m 128", "-t 2: threads", "-m 48"]);
        assert!(journal.settings("cliff").is_empty());
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_reason_vanishes_with_the_last_missing_point() {
        let directory = directory("reasons");
        let mut journal = Journal::open(&directory, &identity("small")).unwrap();
        let mut fail = |why: &str, owed: &[PointId]| {
            journal.not_run("counter", "redis", why.into(), owed.to_vec()).unwrap();
        };
        fail("no port", &[point_id(1), point_id(2)]);
        fail("no memory", &[point_id(2)]);
        let reasons = |journal: &Journal| -> Vec<String> {
            journal.all_not_run("counter").into_iter().map(|row| row.why).collect()
        };
        assert_eq!(reasons(&journal), ["no memory"]);
        journal.add("counter", Point::new(point_id(2), Figures::default())).unwrap();
        assert_eq!(reasons(&journal), ["no port"]);
        journal.add("counter", Point::new(point_id(1), Figures::default())).unwrap();
        assert!(reasons(&journal).is_empty());
        assert!(journal.all_not_run("cliff").is_empty());
        fs::remove_dir_all(directory).unwrap();
    }
}
