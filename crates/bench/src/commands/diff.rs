//! `larder bench diff`: two results of `larder bench all` side by side, point by point.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;

use super::output::{Spread, Table};
use crate::lab::record::{Point, Results, SCHEMA};
use crate::{Error, Result, say};

/// The two results.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
A ratio above 1 is better in B for rates, and worse for latencies. A point counts as changed if its
median changed by more than --threshold and the rounds of A and B do not overlap.

  larder bench diff before/report.json after/report.json
  larder bench diff --systems larder,larder-sync --fail before/report.json after/report.json")]
pub struct Arguments {
    /// The older result, report.json of larder bench all
    #[arg(value_name = "A.json")]
    before: PathBuf,
    /// The newer result
    #[arg(value_name = "B.json")]
    after: PathBuf,
    /// The change of a median that counts, in percent
    #[arg(long, default_value_t = 5.0, value_name = "PERCENT")]
    threshold: f64,
    /// Only these systems
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    systems: Vec<String>,
    /// Print all points, not only those that changed
    #[arg(long)]
    all: bool,
    /// Exit with an error if a point became worse
    #[arg(long)]
    fail: bool,
}

/// What identifies a point in both files: experiment, system, case and x.
type Key = (String, String, String, String);

/// One point in both files.
struct Row {
    key: Key,
    before: Values,
    after: Values,
}

/// The figures of a point over all rounds.
#[derive(Default)]
struct Values {
    rates: Vec<f64>,
    p99s: Vec<f64>,
    voids: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Better,
    Worse,
    None,
}

impl Arguments {
    pub(super) fn run(self) -> Result<()> {
        let (a, b) = (read(&self.before)?, read(&self.after)?);
        if a.machine.line() != b.machine.line() {
            say!("The machines differ: {} and {}.\n", a.machine.line(), b.machine.line());
        }
        let (mut before, mut after) = (points(&a), points(&b));
        before.retain(|key, _| self.wants(key));
        after.retain(|key, _| self.wants(key));
        let only_before = before.keys().filter(|key| !after.contains_key(*key)).count();
        let mut rows = Vec::new();
        let mut only_after = 0;
        for (key, after) in after {
            match before.remove(&key) {
                Some(before) => rows.push(Row { key, before, after }),
                None => only_after += 1,
            }
        }
        let threshold = self.threshold / 100.0;
        let worse = rows.iter().filter(|row| row.change(threshold) == Change::Worse).count();
        let better = rows.iter().filter(|row| row.change(threshold) == Change::Better).count();
        let count = rows.len();
        rows.retain(|row| self.all || row.change(threshold) != Change::None);
        let mut table = shown(&rows, threshold);
        table.notes.push(format!(
            "{count} points in both files: {better} better, {worse} worse; {only_before} only in A, \
             {only_after} only in B."
        ));
        table.print();
        match self.fail && worse > 0 {
            true => Err(Error::Void(format!("{worse} points became worse"))),
            false => Ok(()),
        }
    }

    fn wants(&self, key: &Key) -> bool {
        self.systems.is_empty() || self.systems.contains(&key.1)
    }
}

fn read(path: &Path) -> Result<Results> {
    let (_, results) = Results::read(path)?;
    match results.schema > SCHEMA {
        true => Err(Error::usage(format!("{} needs a newer larder", path.display()))),
        false => Ok(results),
    }
}

fn points(results: &Results) -> BTreeMap<Key, Values> {
    let mut points: BTreeMap<Key, Values> = BTreeMap::new();
    for experiment in &results.experiments {
        for Point { spot, figures, void, .. } in &experiment.points {
            let x = spot.x.map_or(String::new(), |x| x.to_string());
            let key = (experiment.id.clone(), spot.system.clone(), spot.case.clone(), x);
            let values = points.entry(key).or_default();
            if void.is_some() {
                values.voids += 1;
                continue;
            }
            values.rates.push(figures.rate);
            values.p99s.push(figures.p99_us);
        }
    }
    points
}

impl Row {
    fn rate_ratio(&self) -> f64 {
        Spread::of(&self.after.rates).median / Spread::of(&self.before.rates).median
    }

    fn p99_ratio(&self) -> f64 {
        Spread::of(&self.after.p99s).median / Spread::of(&self.before.p99s).median
    }

    /// Compares the rates, or the latencies of loads whose rate is given.
    fn change(&self, threshold: f64) -> Change {
        if self.after.voids > self.before.voids {
            return Change::Worse;
        }
        let (rates, p99s) = (
            change(&self.before.rates, &self.after.rates, threshold),
            change(&self.after.p99s, &self.before.p99s, threshold),
        );
        if rates == Change::None { p99s } else { rates }
    }
}

/// Compares figures of which larger ones are better.
fn change(before: &[f64], after: &[f64], threshold: f64) -> Change {
    let (before, after) = (Spread::of(before), Spread::of(after));
    if after.min > before.max && after.median > before.median * (1.0 + threshold) {
        Change::Better
    } else if after.max < before.min && after.median < before.median * (1.0 - threshold) {
        Change::Worse
    } else {
        Change::None
    }
}

fn shown(rows: &[Row], threshold: f64) -> Table {
    let word = |change: Change| match change {
        Change::Better => "better",
        Change::Worse => "worse",
        Change::None => "",
    };
    Table::of(
        4,
        rows,
        &[
            ("experiment", &|row: &Row| row.key.0.clone()),
            ("case", &|row| row.key.2.clone()),
            ("x", &|row| row.key.3.clone()),
            ("system", &|row| row.key.1.clone()),
            ("rate A", &|row| Spread::of(&row.before.rates).show(0)),
            ("rate B", &|row| Spread::of(&row.after.rates).show(0)),
            ("B / A", &|row| format!("{:.2}", row.rate_ratio())),
            ("p99 µs A", &|row| Spread::of(&row.before.p99s).show(0)),
            ("p99 µs B", &|row| Spread::of(&row.after.p99s).show(0)),
            ("B / A", &|row| format!("{:.2}", row.p99_ratio())),
            ("", &|row| word(row.change(threshold)).to_owned()),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(before: &[f64], after: &[f64]) -> Row {
        let values = |rates: &[f64]| Values {
            rates: rates.to_vec(),
            p99s: vec![100.0; rates.len()],
            voids: 0,
        };
        let key = ("counter".into(), "larder".into(), "event".into(), "1".into());
        Row { key, before: values(before), after: values(after) }
    }

    #[test]
    fn a_change_must_exceed_the_threshold_and_the_noise() {
        let change = |before: &[f64], after: &[f64]| row(before, after).change(0.05);
        assert!(change(&[100.0, 102.0], &[90.0, 92.0]) == Change::Worse);
        assert!(change(&[100.0, 102.0], &[110.0, 112.0]) == Change::Better);
        assert!(change(&[100.0, 102.0], &[97.0, 98.0]) == Change::None, "below the threshold");
        assert!(change(&[80.0, 120.0], &[85.0, 90.0]) == Change::None, "the rounds overlap");
    }

    #[test]
    fn a_point_that_became_void_is_worse() {
        let mut row = row(&[100.0], &[100.0]);
        row.after.voids = 1;
        assert!(row.change(0.05) == Change::Worse);
    }
}
