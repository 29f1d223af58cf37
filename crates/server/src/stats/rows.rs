//! The rows of statistics. Every group calls a function with the name and value of each row.

use std::fmt::{self, Display};

/// Receives name and value of each row.
pub(super) type Row<'a> = dyn FnMut(&str, fmt::Arguments<'_>) + 'a;

/// Passes a row with any printable value.
pub(super) fn put(row: &mut Row<'_>, name: &str, value: impl Display) {
    row(name, format_args!("{value}"));
}
