//! The form in which all groups of statistics pass their rows.

use std::fmt::{self, Display};

/// Receives name and value of each row.
pub(super) type Row<'a> = dyn FnMut(&str, fmt::Arguments<'_>) + 'a;

/// Passes a row with any printable value.
pub(super) fn put(row: &mut Row<'_>, name: &str, value: impl Display) {
    row(name, format_args!("{value}"));
}
