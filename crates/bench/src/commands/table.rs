//! `larder bench table`: prints result files as Markdown tables. Pages of `docs/results` contain
//! its output, so their figures are exactly those of the result files.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;

use super::output::{ResultFile, SCHEMA, Table};
use crate::{Error, Result, say};

/// The files to print.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Each row is a measured case, and each column a figure. The lines below a table name the machine, the
date, the build and the command line. Files of one command share a table: each file has its own
columns, marked with its number. A \u{2013} means that a file lacks a case.

Examples:
  larder bench compare --peer /usr/bin/memcached --json docs/results/2026-11-26-compare.json
  larder bench table docs/results/2026-11-26-compare.json > docs/results/2026-11-26-compare.md")]
pub struct TableArguments {
    /// Result files, as `larder bench COMMAND --json FILE` writes them
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

impl TableArguments {
    pub(super) fn run(self) -> Result<()> {
        let named = |path: &PathBuf| Ok((path.display().to_string(), read(path)?));
        let mut files = self.files.iter().map(named).collect::<Result<Vec<_>>>()?;
        loop {
            let command = files[0].1.command.get(2).cloned();
            let (same, others): (Vec<_>, Vec<_>) =
                files.into_iter().partition(|(_, file)| file.command.get(2) == command.as_ref());
            beside(&same).print();
            if others.is_empty() {
                return Ok(());
            }
            say!();
            files = others;
        }
    }
}

fn read(path: &Path) -> Result<ResultFile> {
    let text = fs::read(path)
        .map_err(|error| Error::io(format!("cannot read {}", path.display()), error))?;
    parse(&text).map_err(|why| Error::usage(format!("{} {why}", path.display())))
}

/// Parses a result file. The error tells people why this version cannot read `text`.
fn parse(text: &[u8]) -> std::result::Result<ResultFile, String> {
    #[derive(Deserialize)]
    struct Version {
        schema: u64,
    }
    let other = |error| format!("is not a result file of larder bench: {error}");
    let Version { schema } = serde_json::from_slice(text).map_err(other)?;
    if schema > SCHEMA {
        return Err(format!("has schema {schema}, newer than {SCHEMA}: use a newer larder"));
    }
    let file: ResultFile = serde_json::from_slice(text).map_err(other)?;
    let Table { case_columns, header, rows, .. } = &file.table;
    if *case_columns > header.len() || rows.iter().any(|row| row.len() != header.len()) {
        return Err("is damaged: its table has rows of different lengths".to_owned());
    }
    Ok(file)
}

/// Combines the tables of result files of one command into one table. Each element of `files` is a
/// file's name and contents.
fn beside(files: &[(String, ResultFile)]) -> Table {
    let case_columns = files[0].1.table.case_columns;
    let mut header = files[0].1.table.header[..case_columns].to_vec();
    let (mut rows, mut notes): (Vec<Vec<String>>, Vec<String>) = (Vec::new(), Vec::new());
    for (number, (name, file)) in (1..).zip(files) {
        let (table, width) = (&file.table, header.len());
        let (mark, named) = match files.len() {
            1 => (String::new(), String::new()),
            _ => (format!(" ({number})"), format!("({number}) {name}: ")),
        };
        header.extend(table.header[table.case_columns..].iter().map(|head| head.clone() + &mark));
        for row in &table.rows {
            let (case, figures) = row.split_at(table.case_columns);
            // If a file has several rows of one case, each of them gets a separate row. So a row
            // that already has figures of this file takes no more.
            let fits = |row: &Vec<String>| row.starts_with(case) && row.len() <= width;
            let place = rows.iter().position(fits).unwrap_or(rows.len());
            if place == rows.len() {
                rows.push(case.to_vec());
            }
            rows[place].resize(width, "–".to_owned());
            rows[place].extend_from_slice(figures);
        }
        notes.extend(table.notes.iter().map(|note| named.clone() + note));
        notes.push(named + &origin(file));
    }
    rows.iter_mut().for_each(|row| row.resize(header.len(), "–".to_owned()));
    Table { case_columns, header, rows, notes: vec![notes.join("\n\n")] }
}

/// Returns the conditions of a measurement in one line.
fn origin(file: &ResultFile) -> String {
    let ResultFile { machine, date, larder, command, .. } = file;
    let quoted = |word: &String| match word.contains(char::is_whitespace) {
        true => format!("\"{word}\""),
        false => word.clone(),
    };
    let words: Vec<String> = command.iter().skip(1).map(quoted).collect();
    format!("{}, {date}, {larder}: `larder {}`", machine.line(), words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(command: &str, rows: &[[&str; 3]]) -> ResultFile {
        let text = serde_json::json!({
            "schema": SCHEMA,
            "command": ["/usr/bin/larder", "bench", command, "--peer", "m=/m -R 9"],
            "date": "2026-11-26T07:30:00.000000Z",
            "larder": { "version": "0.1.0", "revision": "3a86569" },
            "machine": { "cpu": "Chip", "cpus": 2, "memory": 4u64 << 30, "kernel": "Linux 6.18" },
            "table": {
                "case_columns": 1,
                "header": ["load", "keys/s", "p99 µs"],
                "rows": rows,
                "notes": ["all counted"],
            },
            "results": [{ "anything": 1 }],
        });
        parse(text.to_string().as_bytes()).unwrap()
    }

    const ORIGIN: &str = "Chip, 2 processors, 4 GiB, Linux 6.18, 2026-11-26T07:30:00.000000Z, \
                          larder 0.1.0 (3a86569): `larder bench load --peer \"m=/m -R 9\"`";

    #[test]
    fn one_file_keeps_its_table() {
        let file = file("load", &[["get", "1", "2"], ["get", "3", "4"]]);
        let (before, name) = (file.table.clone(), "a.json".to_owned());
        let table = beside(&[(name, file)]);
        assert_eq!((&table.header, &table.rows), (&before.header, &before.rows));
        assert_eq!(table.notes, [format!("all counted\n\n{ORIGIN}")]);
    }

    #[test]
    fn files_stand_side_by_side_and_cases_in_one_row() {
        let one = file("load", &[["get", "1", "2"], ["set", "3", "4"], ["set", "5", "6"]]);
        let two = file("load", &[["set", "7", "8"], ["set", "9", "10"], ["incr", "11", "12"]]);
        let table = beside(&[("a.json".to_owned(), one), ("b.json".to_owned(), two)]);
        assert_eq!(table.header, ["load", "keys/s (1)", "p99 µs (1)", "keys/s (2)", "p99 µs (2)"]);
        let rows = [
            ["get", "1", "2", "–", "–"],
            ["set", "3", "4", "7", "8"],
            ["set", "5", "6", "9", "10"],
            ["incr", "–", "–", "11", "12"],
        ];
        assert_eq!(table.rows, rows);
        assert!(table.notes[0].ends_with(&format!("\n\n(2) b.json: {ORIGIN}")), "{table:?}");
    }

    #[test]
    fn other_files_are_refused_with_a_reason() {
        let why = |text: &str| parse(text.as_bytes()).unwrap_err();
        for text in ["", "[]", r#"{"report": 1}"#, r#"{"schema": 1}"#] {
            assert!(why(text).starts_with("is not a result file of larder bench: "), "{text}");
        }
        assert!(why(r#"{"schema": 2, "new": []}"#).starts_with("has schema 2, newer than 1"));
    }
}
