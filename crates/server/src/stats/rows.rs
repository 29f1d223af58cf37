//! The rows of statistics. Every group calls a function with the name and value of each row.

use std::fmt::{self, Display};

/// Receives name and value of each row.
pub(super) type Row<'a> = dyn FnMut(&str, fmt::Arguments<'_>) + 'a;

/// Calls `row` with a name and any printable value.
pub(super) fn put(row: &mut Row<'_>, name: &str, value: impl Display) {
    row(name, format_args!("{value}"));
}
