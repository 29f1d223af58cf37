//! Tables with one column per figure of a row.

use super::output::print_table;

/// A column: its head, and how a row fills it.
pub(super) type Column<'a, R> = (&'a str, &'a dyn Fn(&R) -> String);

/// Prints rows as a Markdown table.
pub(super) fn print_rows<R>(rows: &[R], columns: &[Column<'_, R>]) {
    let heads: Vec<&str> = columns.iter().map(|column| column.0).collect();
    let cells = |row| columns.iter().map(|column| (column.1)(row)).collect();
    print_table(&heads, &rows.iter().map(cells).collect::<Vec<Vec<String>>>());
}
