//! `larder bench diff`: two results of `larder bench all` side by side, figure by figure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::Args;

use super::output::{Spread, Table};
use crate::lab::record::{ExperimentResults, Point, Results, SCHEMA, SystemRow};
use crate::{Error, Result, say};

/// The two results.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
A figure counts as changed if its median differs by more than --threshold and the ranges of the
rounds of A and B do not overlap. If more rounds of a point are void (without a valid result) in B,
or all of them, that counts as worse. Figures and points that only A has are listed, and so are
systems that finished an experiment only in A (\"not run\"). --fail exits with an error for them. If
B measured less than A, choose what to compare with --systems and --only.

Examples:
  larder bench diff before/report.json after/report.json
  larder bench diff --systems larder,larder-sync --fail before/report.json after/report.json")]
pub struct DiffArguments {
    /// Older result: a report.json of `larder bench all`
    #[arg(value_name = "A.json")]
    before: PathBuf,
    /// Newer result: another report.json
    #[arg(value_name = "B.json")]
    after: PathBuf,
    /// Percent by which a median must change to count as changed
    #[arg(long, default_value_t = 5.0, value_name = "PERCENT")]
    threshold: f64,
    /// Compare only these systems; separate names by commas
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    systems: Vec<String>,
    /// Compare only these experiments; separate names by commas
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
    /// Print all figures, not only the changed ones
    #[arg(long)]
    all: bool,
    /// Compare even if the scales, the measured times or the recorded traces differ
    #[arg(long)]
    all_scales: bool,
    /// Exit with an error if a figure became worse or is missing in B
    #[arg(long)]
    fail: bool,
}

/// Whether a larger or a smaller value of a figure is better.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Better {
    More,
    Less,
}

/// The name of the figure that counts the void rounds of a point.
const VOID: &str = "void rounds";

/// The figure of a row for a system that did not finish an experiment.
const NOT_RUN: &str = "not run";

/// The figures that are compared. Some are fields of every point, or are computed from them (see
/// [`figure`]). The others are extra figures that only single experiments have. This list omits
/// most extra figures: they repeat another figure, or are neither better nor worse.
const FIGURES: [(&str, Better); 22] = [
    (VOID, Better::Less),
    ("rate", Better::More),
    ("steadiness", Better::More),
    ("p50_us", Better::Less),
    ("p99_us", Better::Less),
    ("p999_us", Better::Less),
    ("cpu_us", Better::Less),
    ("rss", Better::Less),
    ("hit_ratio", Better::More),
    ("missing_updates", Better::Less),
    ("duplicates", Better::Less),
    ("over_admission", Better::Less),
    ("added_us", Better::Less),
    ("application_cpu_us", Better::Less),
    ("unanswered", Better::Less),
    ("items", Better::More),
    ("items_per_gib_resident", Better::More),
    ("ram_bytes_per_item", Better::Less),
    ("flash_bytes_per_item", Better::Less),
    ("written_per_byte", Better::Less),
    ("ready_ms", Better::Less),
    ("survived", Better::More),
];

/// The identity of a point in both files: experiment, system, case and position on the x axis.
type Key = (String, String, String, String);

/// The values of each figure of a point, one per round. [`VOID`] has a single value.
type FigureValues = BTreeMap<&'static str, Vec<f64>>;

/// One figure of a point in both files.
struct ComparedFigure {
    key: Key,
    figure: &'static str,
    before: Vec<f64>,
    after: Vec<f64>,
    change: Change,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Better,
    Worse,
    /// The figure or the point is only in A, the older result.
    Missing,
    /// The figure or the point is only in B, the newer result.
    New,
    None,
}

impl DiffArguments {
    pub(super) fn run(self) -> Result<()> {
        if !(self.threshold.is_finite() && self.threshold >= 0.0) {
            return Err(Error::usage("--threshold takes a number of percent, 0 or more"));
        }
        let (a, b) = (read(&self.before)?, read(&self.after)?);
        self.require_known_names(&a, &b)?;
        if !self.all_scales {
            require_same_size(&a, &b)?;
            if self.wants_experiment("hitratio") {
                require_same_traces(&a, &b)?;
            }
        }
        for (name, results) in [("A", &a), ("B", &b)] {
            if results.larder.is_debug() {
                say!("{name} was measured with a debug build.\n");
            }
        }
        if a.machine.line() != b.machine.line() {
            say!("The machines differ: {} and {}.\n", a.machine.line(), b.machine.line());
        }
        let (mut before, mut after) = (points(&a), points(&b));
        before.retain(|key, _| self.wants(key));
        after.retain(|key, _| self.wants(key));
        if before.is_empty() {
            return Err(Error::usage("A has no points of this selection: nothing to compare"));
        }
        for note in self.notes(&a, &b) {
            say!("{note}\n");
        }
        let mut rows = compare(&before, &after, self.threshold / 100.0);
        rows.extend(not_run(&a, &b).into_iter().filter(|row| self.wants(&row.key)));
        let count = |change| rows.iter().filter(|row| row.change == change).count();
        let (better, worse) = (count(Change::Better), count(Change::Worse));
        let (missing, new) = (count(Change::Missing), count(Change::New));
        let both = before.keys().filter(|key| after.contains_key(*key)).count();
        rows.retain(|row| self.all || !matches!(row.change, Change::None | Change::New));
        let mut table = shown(&rows);
        table.notes.push(format!(
            "{both} points in both files. Figures: {better} better, {worse} worse, {missing} missing \
             in B, {new} only in B."
        ));
        table.print();
        match self.fail && worse + missing > 0 {
            true => {
                Err(Error::Void(format!("{worse} figures became worse, {missing} are missing")))
            }
            false => Ok(()),
        }
    }

    fn wants(&self, (experiment, system, ..): &Key) -> bool {
        self.wants_system(system) && self.wants_experiment(experiment)
    }

    fn wants_system(&self, id: &str) -> bool {
        self.systems.is_empty() || self.systems.iter().any(|name| name == id)
    }

    fn wants_experiment(&self, id: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == id)
    }

    /// Checks that at least one of the results has each selected system and experiment. A name with
    /// a typing error would select nothing, and nothing would have become worse.
    fn require_known_names(&self, a: &Results, b: &Results) -> Result<()> {
        let (mut systems, mut experiments) = (BTreeSet::new(), BTreeSet::new());
        for experiment in a.experiments.iter().chain(&b.experiments) {
            experiments.insert(experiment.id.as_str());
            systems.extend(experiment.points.iter().map(|point| point.id.system.as_str()));
        }
        let require = |names: &[String], known: &BTreeSet<&str>, what: &str| {
            let Some(name) = names.iter().find(|name| !known.contains(name.as_str())) else {
                return Ok(());
            };
            let known: Vec<&str> = known.iter().copied().collect();
            let known = known.join(", ");
            Err(Error::usage(format!("{name:?} is not {what} of A or B: {known}")))
        };
        require(&self.systems, &systems, "a system")?;
        require(&self.only, &experiments, "an experiment")
    }

    /// Returns notes on what differs between the results besides the figures: the conditions of
    /// experiments and the versions of systems.
    fn notes(&self, a: &Results, b: &Results) -> Vec<String> {
        let mut notes = Vec::new();
        for before in a.experiments.iter().filter(|before| self.wants_experiment(&before.id)) {
            let Some(after) = b.experiments.iter().find(|after| after.id == before.id) else {
                continue;
            };
            if before.conditions != after.conditions {
                let only = |of: &ExperimentResults, other: &ExperimentResults| {
                    let is_missing = |line: &&String| !other.conditions.contains(*line);
                    let lines: Vec<String> =
                        of.conditions.iter().filter(is_missing).cloned().collect();
                    if lines.is_empty() { "nothing".to_owned() } else { lines.join("; ") }
                };
                let (only_a, only_b) = (only(before, after), only(after, before));
                notes.push(format!(
                    "The conditions of {} differ. Only in A: {only_a}. Only in B: {only_b}.",
                    before.id
                ));
            }
        }
        for before in a.systems.iter().filter(|before| self.wants_system(&before.id)) {
            let is_other =
                |after: &&SystemRow| after.id == before.id && after.version != before.version;
            if let Some(after) = b.systems.iter().find(is_other) {
                let (name, old, new) = (&before.name, &before.version, &after.version);
                notes.push(format!("The versions of {name} differ: {old} and {new}."));
            }
        }
        notes
    }
}

fn read(path: &Path) -> Result<Results> {
    let (_, results) = Results::read(path)?;
    match results.schema > SCHEMA {
        true => Err(Error::usage(format!("{} needs a newer larder", path.display()))),
        false => Ok(results),
    }
}

/// Checks that both results have the same amounts of data and the same measured times.
fn require_same_size(a: &Results, b: &Results) -> Result<()> {
    let (a, b) = (size(a), size(b));
    match a == b {
        true => Ok(()),
        false => Err(Error::usage(format!(
            "A is of scale {a} and B of scale {b}, so their figures differ for that reason: \
             --all-scales compares them all the same"
        ))),
    }
}

/// Checks that recorded traces, if both results name them, have the same names and contents. Points
/// of traces with the same name would be compared even if the contents differ.
fn require_same_traces(a: &Results, b: &Results) -> Result<()> {
    let (a, b) = (&a.traces, &b.traces);
    match a == b || a.is_empty() || b.is_empty() {
        true => Ok(()),
        false => Err(Error::usage(format!(
            "A replayed the recorded traces {a} and B replayed {b}, so the figures of hitratio \
             differ for that reason: --all-scales compares them all the same"
        ))),
    }
}

/// Returns the scale, and the measured minutes if the command line gave them.
fn size(results: &Results) -> String {
    let mut words = results.command.iter();
    let minutes = words.find_map(|word| match word.strip_prefix("--minutes") {
        Some("") => Some(None),
        Some(rest) => rest.strip_prefix('=').map(Some),
        None => None,
    });
    let minutes = minutes.and_then(|inside| inside.or(words.next().map(String::as_str)));
    match minutes.and_then(|minutes| minutes.parse::<f64>().ok()) {
        Some(minutes) => format!("{}, {minutes} min", results.scale),
        None => results.scale.clone(),
    }
}

fn points(results: &Results) -> BTreeMap<Key, FigureValues> {
    let mut points: BTreeMap<Key, FigureValues> = BTreeMap::new();
    for experiment in &results.experiments {
        for point in &experiment.points {
            let point_id = &point.id;
            let x = point_id.x.map_or(String::new(), |x| x.to_string());
            let key = (experiment.id.clone(), point_id.system.clone(), point_id.case.clone(), x);
            let values = points.entry(key).or_default();
            let is_void = point.void.is_some();
            values.entry(VOID).or_insert_with(|| vec![0.0])[0] += f64::from(u8::from(is_void));
            let known = FIGURES.iter().filter(|_| !is_void);
            for (name, value) in known.filter_map(|&(name, _)| Some((name, figure(point, name)?))) {
                values.entry(name).or_default().push(value);
            }
        }
    }
    points
}

/// Returns a figure of a point, or `None` if it was not measured.
fn figure(point: &Point, name: &str) -> Option<f64> {
    let figures = &point.figures;
    let measured = |figure: f64| (figure != 0.0).then_some(figure);
    match name {
        "rate" => Some(figures.rate),
        "steadiness" => steadiness(point),
        "p50_us" => measured(figures.p50_us),
        "p99_us" => measured(figures.p99_us),
        "p999_us" => measured(figures.p999_us),
        "cpu_us" => measured(figures.cpu_us),
        "rss" => measured(figures.rss as f64),
        "hit_ratio" => figures.hit_ratio,
        _ => point.extra.get(name).copied(),
    }
}

/// Returns the rate of the worst second as a share of that of the median second, as the report
/// does. Returns `None` if the point has no seconds, or no rates above 0.
fn steadiness(point: &Point) -> Option<f64> {
    let rates: Vec<f64> = point.seconds.iter().map(|second| second.rate).collect();
    let spread = Spread::of(&rates);
    (spread.median > 0.0).then(|| spread.min / spread.median)
}

/// Returns a row for each system that A measured in an experiment and that did not finish the
/// experiment in B, but did in A. Its points in B, if there are any, do not show this.
fn not_run(a: &Results, b: &Results) -> Vec<ComparedFigure> {
    let mut rows = Vec::new();
    for after in &b.experiments {
        let Some(before) = a.experiments.iter().find(|before| before.id == after.id) else {
            continue;
        };
        let failed: BTreeSet<&str> =
            after.not_run.iter().map(|not_run| not_run.system.as_str()).collect();
        for system in failed {
            let is_measured = before.points.iter().any(|point| point.id.system == system);
            if !is_measured || before.not_run.iter().any(|not_run| not_run.system == system) {
                continue;
            }
            rows.push(ComparedFigure {
                key: (after.id.clone(), system.to_owned(), String::new(), String::new()),
                figure: NOT_RUN,
                before: Vec::new(),
                after: Vec::new(),
                change: Change::Missing,
            });
        }
    }
    rows
}

/// Compares all figures of all points. If only one file has a point, the result has one row for the
/// point.
fn compare(
    before: &BTreeMap<Key, FigureValues>,
    after: &BTreeMap<Key, FigureValues>,
    threshold: f64,
) -> Vec<ComparedFigure> {
    let mut rows = Vec::new();
    let none = FigureValues::new();
    let new =
        after.iter().filter(|(key, _)| !before.contains_key(*key)).map(|(key, _)| (key, &none));
    for (key, a) in before.iter().chain(new) {
        let row = |figure, before: &[f64], after: &[f64], change| ComparedFigure {
            key: key.clone(),
            figure,
            before: before.to_vec(),
            after: after.to_vec(),
            change,
        };
        let Some(b) = after.get(key) else {
            rows.push(row("point", &[], &[], Change::Missing));
            continue;
        };
        if a.is_empty() {
            rows.push(row("point", &[], &[], Change::New));
            continue;
        }
        // If all rounds of a point are void, the number of void rounds is its only figure. Its
        // other figures then do not count as missing or new.
        let is_void = |values: &FigureValues| values.len() == 1;
        for (name, better) in FIGURES {
            let change = match (a.get(name), b.get(name)) {
                // All rounds are void in one result only. The counts of void rounds do not show
                // this, because the numbers of rounds may differ.
                _ if name == VOID && is_void(a) != is_void(b) => match is_void(b) {
                    true => Change::Worse,
                    false => Change::Better,
                },
                (Some(a), Some(b)) => change(a, b, better, threshold),
                (Some(_), None) if !is_void(b) => Change::Missing,
                (None, Some(_)) if !is_void(a) => Change::New,
                _ => continue,
            };
            let values = |of: &FigureValues| of.get(name).cloned().unwrap_or_default();
            rows.push(row(name, &values(a), &values(b), change));
        }
    }
    rows
}

fn change(before: &[f64], after: &[f64], better: Better, threshold: f64) -> Change {
    let (before, after) = (Spread::of(before), Spread::of(after));
    let least = before.median.abs() * threshold;
    let (more, less) = match better {
        Better::More => (Change::Better, Change::Worse),
        Better::Less => (Change::Worse, Change::Better),
    };
    if after.min > before.max && after.median > before.median + least {
        more
    } else if after.max < before.min && after.median < before.median - least {
        less
    } else {
        Change::None
    }
}

fn shown(rows: &[ComparedFigure]) -> Table {
    let values = |values: &[f64]| {
        let spread = Spread::of(values);
        let decimals = match spread.median.abs() {
            100.0.. => 0,
            1.0.. => 2,
            _ => 4,
        };
        if values.is_empty() { "–".to_owned() } else { spread.show(decimals) }
    };
    let ratio = |row: &ComparedFigure| {
        let (before, after) = (Spread::of(&row.before).median, Spread::of(&row.after).median);
        let is_known = !row.after.is_empty() && before != 0.0;
        if is_known { format!("{:.2}", after / before) } else { "–".to_owned() }
    };
    let word = |change: Change| match change {
        Change::Better => "better",
        Change::Worse => "worse",
        Change::Missing => "missing in B",
        Change::New => "only in B",
        Change::None => "",
    };
    Table::of(
        5,
        rows,
        &[
            ("experiment", &|row: &ComparedFigure| row.key.0.clone()),
            ("case", &|row| row.key.2.clone()),
            ("x", &|row| row.key.3.clone()),
            ("system", &|row| row.key.1.clone()),
            ("figure", &|row| row.figure.to_owned()),
            ("A", &|row| values(&row.before)),
            ("B", &|row| values(&row.after)),
            ("B / A", &ratio),
            ("", &|row| word(row.change).to_owned()),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::record::{Figures, NotRun, PointId, SecondRow};

    fn point(rate: f64, extra: &[(&str, f64)]) -> Point {
        let point_id =
            PointId { system: "larder".into(), case: "items".into(), x: Some(1.0), round: 1 };
        let figures = Figures { rate, cpu_us: 2.0, ..Figures::default() };
        let point = Point::new(point_id, figures);
        extra.iter().fold(point, |point, &(name, value)| point.with(name, value))
    }

    fn results(points: Vec<Point>) -> Results {
        let made_up = include_str!("../lab/report/made-up.json");
        let mut results: Results = serde_json::from_str(made_up).unwrap();
        results.experiments.truncate(1);
        results.experiments[0].points = points;
        results
    }

    /// Returns the figures that changed, with their changes.
    fn changes(before: Vec<Point>, after: Vec<Point>) -> Vec<(&'static str, Change)> {
        let (before, after) = (points(&results(before)), points(&results(after)));
        let rows = compare(&before, &after, 0.05).into_iter();
        rows.filter(|row| row.change != Change::None).map(|row| (row.figure, row.change)).collect()
    }

    #[test]
    fn a_change_must_exceed_the_threshold_and_the_noise() {
        let more = |before: &[f64], after: &[f64]| change(before, after, Better::More, 0.05);
        assert_eq!(more(&[100.0, 102.0], &[90.0, 92.0]), Change::Worse);
        assert_eq!(more(&[100.0, 102.0], &[110.0, 112.0]), Change::Better);
        assert_eq!(more(&[100.0, 102.0], &[97.0, 98.0]), Change::None, "below the threshold");
        assert_eq!(more(&[80.0, 120.0], &[85.0, 90.0]), Change::None, "the rounds overlap");
        let less = |before: &[f64], after: &[f64]| change(before, after, Better::Less, 0.05);
        assert_eq!(less(&[100.0], &[90.0]), Change::Better);
        assert_eq!(less(&[0.0], &[1.0]), Change::Worse, "a first fault");
        assert_eq!(less(&[-5.0], &[-5.1]), Change::None, "below the threshold");
    }

    #[test]
    fn each_figure_has_its_direction() {
        let before = point(100.0, &[("ready_ms", 10.0), ("items", 50.0), ("budget", 1.0)]);
        let after = point(100.0, &[("ready_ms", 20.0), ("items", 60.0), ("budget", 2.0)]);
        let expected = [("items", Change::Better), ("ready_ms", Change::Worse)];
        assert_eq!(changes(vec![before], vec![after]), expected);
        let slower = point(80.0, &[("missing_updates", 1.0)]);
        let before = point(100.0, &[("missing_updates", 0.0)]);
        let expected = [("rate", Change::Worse), ("missing_updates", Change::Worse)];
        assert_eq!(changes(vec![before], vec![slower]), expected);
    }

    #[test]
    fn latencies_memory_and_steadiness_are_compared() {
        let of = |latency: f64, rss: u64, worst: f64| {
            let mut point = point(100.0, &[]);
            point.figures.p50_us = latency;
            point.figures.p999_us = 10.0 * latency;
            point.figures.rss = rss;
            let second = |rate: f64| SecondRow { rate, ..SecondRow::default() };
            point.seconds = [100.0, worst, 104.0].map(second).to_vec();
            point
        };
        assert_eq!(figure(&of(1.0, 1, 40.0), "steadiness"), Some(0.4));
        assert_eq!(figure(&point(1.0, &[]), "steadiness"), None);
        assert_eq!(figure(&point(1.0, &[]), "rss"), None);
        let worse = ["steadiness", "p50_us", "p999_us", "rss"].map(|name| (name, Change::Worse));
        assert_eq!(changes(vec![of(5.0, 1000, 90.0)], vec![of(9.0, 2000, 10.0)]), worse);
        let better = worse.map(|(name, _)| (name, Change::Better));
        assert_eq!(changes(vec![of(9.0, 2000, 10.0)], vec![of(5.0, 1000, 90.0)]), better);
    }

    #[test]
    fn a_system_that_did_not_finish_is_missing() {
        let before = results(vec![point(1.0, &[])]);
        let mut after = before.clone();
        let failed = |system: &str| NotRun { system: system.into(), why: "it ended".into() };
        after.experiments[0].not_run = vec![failed("larder"), failed("not-in-a"), failed("larder")];
        let systems = |a: &Results, b: &Results| -> Vec<(String, &'static str, Change)> {
            not_run(a, b).into_iter().map(|row| (row.key.1, row.figure, row.change)).collect()
        };
        let expected = [("larder".to_owned(), NOT_RUN, Change::Missing)];
        assert_eq!(systems(&before, &after), expected);
        assert!(systems(&after, &after).is_empty(), "it did not finish in A either");
        assert!(systems(&after, &before).is_empty());
    }

    #[test]
    fn traces_of_the_same_name_and_other_contents_are_refused() {
        let of = |traces: &str| Results { traces: traces.into(), ..results(Vec::new()) };
        let (one, other, none) = (of("web (hash 1)"), of("web (hash 2)"), of(""));
        require_same_traces(&one, &one).unwrap();
        require_same_traces(&one, &none).unwrap();
        require_same_traces(&none, &one).unwrap();
        let error = require_same_traces(&one, &other).unwrap_err().to_string();
        assert!(error.contains("traces web (hash 1) and B replayed web (hash 2)"), "{error}");
        assert!(!serde_json::to_string(&none).unwrap().contains("\"traces\""));
    }

    #[test]
    fn missing_points_and_figures_are_named() {
        let whole = || point(1.0, &[("ready_ms", 10.0)]);
        assert_eq!(changes(vec![whole()], Vec::new()), [("point", Change::Missing)]);
        assert_eq!(changes(Vec::new(), vec![whole()]), [("point", Change::New)]);
        let without = point(1.0, &[]);
        assert_eq!(changes(vec![whole()], vec![without]), [("ready_ms", Change::Missing)]);
    }

    #[test]
    fn a_point_that_became_void_is_worse() {
        let void = || Point { void: Some("wrong".into()), ..point(1.0, &[]) };
        assert_eq!(changes(vec![point(1.0, &[])], vec![void()]), [(VOID, Change::Worse)]);
        assert_eq!(changes(vec![void()], vec![point(1.0, &[])]), [(VOID, Change::Better)]);
        let partly = vec![void(), point(1.0, &[])];
        let expected = [(VOID, Change::Worse)];
        assert_eq!(changes(partly, vec![void()]), expected, "as many void rounds, but all of them");
    }

    fn arguments(words: &[&str]) -> DiffArguments {
        use clap::Parser;

        #[derive(Parser)]
        struct Command {
            #[command(flatten)]
            arguments: DiffArguments,
        }
        let words = ["diff", "A.json", "B.json"].iter().chain(words);
        Command::parse_from(words).arguments
    }

    #[test]
    fn a_selection_must_exist() {
        let results = results(vec![point(1.0, &[])]);
        let check = |words: &[&str]| arguments(words).require_known_names(&results, &results);
        check(&[]).unwrap();
        check(&["--systems", "larder", "--only", "counter"]).unwrap();
        let error = check(&["--systems", "larder,lardr"]).unwrap_err().to_string();
        assert!(error.contains("\"lardr\" is not a system of A or B: larder"), "{error}");
        let error = check(&["--only", "coutner"]).unwrap_err().to_string();
        assert!(error.contains("\"coutner\" is not an experiment of A or B: counter"), "{error}");
    }

    #[test]
    fn a_comparison_of_nothing_is_refused() {
        let folder = std::env::temp_dir().join(format!("larder-diff-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = |name: &str, points: Vec<Point>| {
            let path = folder.join(name);
            std::fs::write(&path, serde_json::to_string(&results(points)).unwrap()).unwrap();
            path
        };
        let (some, none) = (file("some.json", vec![point(1.0, &[])]), file("none.json", vec![]));
        let run = |before: &Path, after: &Path, threshold: &str| {
            let option = format!("--threshold={threshold}");
            let arguments = arguments(&[&option, "--fail"]);
            DiffArguments { before: before.into(), after: after.into(), ..arguments }.run()
        };
        run(&some, &some, "0").unwrap();
        let error = run(&none, &some, "5").unwrap_err().to_string();
        assert!(error.contains("A has no points of this selection"), "{error}");
        for threshold in ["NaN", "inf", "-1"] {
            let error = run(&some, &some, threshold).unwrap_err().to_string();
            assert!(error.contains("--threshold takes"), "{error}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn other_conditions_and_versions_are_named() {
        let before = results(Vec::new());
        let mut after = before.clone();
        assert!(arguments(&[]).notes(&before, &after).is_empty());
        after.experiments[0].conditions[0] = "2 keys".into();
        after.systems[0].version = "2".into();
        let expected = [
            "The conditions of counter differ. Only in A: 1 key. Only in B: 2 keys.",
            "The versions of Larder differ: made up and 2.",
        ];
        assert_eq!(arguments(&[]).notes(&before, &after), expected);
        let others = arguments(&["--only", "cliff", "--systems", "memcached"]);
        assert!(others.notes(&before, &after).is_empty());
    }

    #[test]
    fn results_of_different_sizes_are_refused() {
        let of = |scale: &str, words: &[&str]| Results {
            scale: scale.into(),
            command: words.iter().map(|&word| word.to_owned()).collect(),
            ..results(Vec::new())
        };
        let same = |a: &Results, b: &Results| require_same_size(a, b).is_ok();
        let small = of("small", &["larder", "bench", "all"]);
        assert!(same(&small, &of("small", &["larder", "bench", "all", "--rounds", "2"])));
        assert!(!same(&small, &of("full", &[])));
        let three = of("small", &["all", "--minutes", "3"]);
        assert!(same(&three, &of("small", &["all", "--minutes=3.0", "--list"])));
        assert!(!same(&three, &small) && !same(&three, &of("small", &["--minutes", "1"])));
        let error = require_same_size(&three, &small).unwrap_err().to_string();
        assert!(error.contains("A is of scale small, 3 min and B of scale small"), "{error}");
    }
}
