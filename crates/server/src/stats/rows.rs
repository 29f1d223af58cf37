//! How every group of statistics delivers its rows: it calls a function with each name and value.

use std::fmt::{self, Display};

/// Receives name and value of each row.
pub(super) type Row<'a> = dyn FnMut(&str, fmt::Arguments<'_>) + 'a;

/// Passes a row with any printable value.
pub(super) fn put(row: &mut Row<'_>, name: &str, value: impl Display) {
    row(name, format_args!("{value}"));
}
