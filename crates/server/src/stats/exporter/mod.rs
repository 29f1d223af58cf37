//! The names that the memcached exporter of the Prometheus project (v0.14 to v0.16) gives to the
//! rows of `stats`. `/metrics` shows them with the exporter's types, labels and formulas, so that
//! dashboards and alerts made for the exporter work without it. A formula is a sum of rows.

mod absent;
mod classes;
mod family;
mod server;
mod store;

use std::collections::BTreeMap;

use super::metric::escaped;
pub(super) use family::Family;

/// Metrics of the exporter that are read from the same group of `stats`.
pub(super) struct FamilyList {
    pub(super) group: &'static str,
    pub(super) families: &'static [Family],
    pub(super) shown: Shown,
}

/// When the exporter shows metrics of Larder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    Always,
    /// Once the server has had items.
    WithItems,
    WithStore,
    /// Never, for this reason.
    Never(&'static str),
}

impl Shown {
    /// Returns the words of the documentation.
    #[cfg(test)]
    pub(super) fn name(self) -> &'static str {
        match self {
            Shown::Always => "always",
            Shown::WithItems => "with items",
            Shown::WithStore => "with a store",
            Shown::Never(reason) => reason,
        }
    }
}

const fn list(group: &'static str, families: &'static [Family], shown: Shown) -> FamilyList {
    FamilyList { group, families, shown }
}

/// All metrics of the exporter.
pub(super) static LISTS: &[FamilyList] = &[
    list("", server::SERVER, Shown::Always),
    list("settings", server::SETTINGS, Shown::Always),
    list("slabs", server::MALLOCED, Shown::Always),
    list("", server::PROCESS, Shown::Always),
    list("items", classes::ITEMS, Shown::WithItems),
    list("slabs", classes::SLABS, Shown::WithItems),
    list("", store::STORE, Shown::WithStore),
    list("", absent::UNCOUNTED, Shown::Never("never: Larder does not count it")),
    list("items", absent::TEMPORARY, Shown::Never("never: there is no temporary LRU")),
    list("settings", absent::CRAWLER, Shown::Never("never: there is no LRU crawler")),
    list("", absent::PROXY, Shown::Never("never: Larder is no proxy")),
];

/// The rows of one group of `stats`, by name.
pub(super) type RowTexts = BTreeMap<String, String>;

/// Returns the terms of a formula: each with true if it is subtracted. The number 1 is a term too.
pub(super) fn terms(formula: &str) -> impl Iterator<Item = (bool, &str)> {
    let mut subtracted = false;
    formula.split(' ').filter_map(move |word| match word {
        "+" | "-" => {
            subtracted = word == "-";
            None
        }
        row => Some((subtracted, row)),
    })
}

/// Returns the value of a formula; `None` if a row is missing or is no number.
pub(super) fn value(formula: &str, rows: &RowTexts) -> Option<String> {
    let number = |row: &str| match row {
        "1" => Some("1"),
        row => rows.get(row).map(String::as_str),
    };
    let terms: Vec<_> = terms(formula).collect();
    if let [(false, row)] = terms[..] {
        // Whole numbers keep all their digits.
        return number(row).filter(|text| text.parse::<f64>().is_ok()).map(str::to_owned);
    }
    let mut sum = 0.0;
    for (subtracted, row) in terms {
        let term = number(row)?.parse::<f64>().ok()?;
        sum += if subtracted { -term } else { term };
    }
    Some(sum.to_string())
}

/// Returns labels with the texts of the rows that they name.
pub(super) fn filled(labels: &str, rows: &RowTexts) -> String {
    match labels.split_once('{').and_then(|(a, rest)| Some((a, rest.split_once('}')?))) {
        Some((before, (row, after))) => {
            let text = rows.get(row).map(String::as_str).unwrap_or_default();
            format!("{before}{}{after}", escaped(text))
        }
        None => labels.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formulas_are_sums_of_rows() {
        let rows = [("a", "18446744073709551615"), ("b", "3"), ("c", "0.000500"), ("t", "none")];
        let rows = rows.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
        let value = |formula| value(formula, &rows);
        assert_eq!(value("a").unwrap(), "18446744073709551615");
        assert_eq!(value("b - c").unwrap(), "2.9995");
        assert_eq!(value("b + b - 1").unwrap(), "5");
        assert_eq!(value("b - missing"), None);
        assert_eq!(value("t"), None);
        assert_eq!(filled("x=\"{t}\",y=\"z\"", &rows), "x=\"none\",y=\"z\"");
    }

    #[test]
    fn every_name_is_listed_once() {
        let mut names = std::collections::BTreeSet::new();
        for family in LISTS.iter().flat_map(|list| list.families) {
            assert!(names.insert(family.name), "{} twice", family.name);
            assert!(family.name.starts_with("memcached_"));
            assert!(!family.samples.is_empty());
        }
    }
}
