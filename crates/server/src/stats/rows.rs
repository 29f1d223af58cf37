//! Rows as every group of statistics gives them.

use std::fmt::{self, Display};

/// Takes rows: name and value.
pub(super) type Row<'a> = dyn FnMut(&str, fmt::Arguments<'_>) + 'a;

/// A row whose value is anything printable.
pub(super) fn put(row: &mut Row<'_>, name: &str, value: impl Display) {
    row(name, format_args!("{value}"));
}
