//! The names that the memcached exporter of the Prometheus project (v0.14 to v0.16) gives to the
//! rows of `stats`. `/metrics` shows these names with the exporter's types, labels and formulas. So
//! dashboards and alerts that were made for the exporter work without it. A formula is a sum or
//! difference of rows.

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

/// When the exporter shows a list of metrics for a Larder server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    Always,
    /// Shown while there are items (`stats items`) or segments (`stats slabs`).
    WithItems,
    WithStore,
    /// Never shown. The string is the reason.
    Never(&'static str),
}

impl Shown {
    /// Returns the words for `docs/metrics.md`.
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

/// Returns the terms of a formula, each with true if it is subtracted. A term is the name of a row,
/// or the number 1.
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
        // A single row is not converted to a float, so whole numbers keep all their digits.
        return number(row).filter(|text| text.parse::<f64>().is_ok()).map(str::to_owned);
    }
    let mut sum = 0.0;
    for (subtracted, row) in terms {
        let term = number(row)?.parse::<f64>().ok()?;
        sum += if subtracted { -term } else { term };
    }
    Some(sum.to_string())
}

/// Returns `labels`, in which the text of a row replaces the row's name in braces.
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
    use std::collections::BTreeSet;

    use super::super::metric::MetricKind;
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

    /// The counters in the source of exporter v0.16 and of its process collector, without the
    /// prefix `memcached_`. [`GAUGES`] has the gauges. v0.14 and v0.15 have a subset of both lists,
    /// with the same types.
    const COUNTERS: &str = "commands_total connections_listener_disabled_total connections_rejected_total \
        connections_total connections_yielded_total direct_reclaims_total \
        extstore_bytes_evicted_total extstore_bytes_read_total extstore_bytes_used \
        extstore_bytes_written_total extstore_compact_lost_total \
        extstore_compact_rescued_total extstore_compact_skipped_total \
        extstore_objects_evicted_total extstore_objects_read_total \
        extstore_objects_written_total extstore_pages_allocated_total \
        extstore_pages_evicted_total extstore_pages_reclaimed_total item_no_memory_total \
        item_too_large_total items_evicted_total items_reclaimed_total items_total \
        lru_crawler_items_checked_total lru_crawler_moves_to_cold_total \
        lru_crawler_moves_to_warm_total lru_crawler_moves_within_lru_total \
        lru_crawler_reclaimed_total lru_crawler_starts_total process_cpu_seconds_total \
        process_system_cpu_seconds_total process_user_cpu_seconds_total \
        proxy_backend_marked_bad_total proxy_config_cron_fails_total \
        proxy_config_cron_runs_total proxy_config_reload_fails_total \
        proxy_config_reloads_total proxy_conn_errors_total proxy_conn_oom_total \
        proxy_conn_requests_total proxy_request_failed_depth_total read_bytes_total \
        round_robin_fallback_total slab_commands_total \
        slab_items_crawler_reclaimed_total slab_items_evicted_nonzero_total \
        slab_items_evicted_time_seconds slab_items_evicted_total \
        slab_items_evicted_unfetched_total slab_items_expired_unfetched_total \
        slab_items_moves_to_cold slab_items_moves_to_warm slab_items_moves_within_lru \
        slab_items_outofmemory_total slab_items_reclaimed_total \
        slab_items_tailrepairs_total slab_lru_hits_total slab_mem_requested_bytes \
        unexpected_napi_ids_total uptime_seconds written_bytes_total";
    const GAUGES: &str = "accepting_connections current_bytes current_connections current_items \
        extstore_bytes_fragmented extstore_bytes_limit extstore_io_queue_depth \
        extstore_objects_used extstore_pages_free extstore_pages_used limit_bytes \
        lru_crawler_enabled lru_crawler_hot_max_factor lru_crawler_hot_percent \
        lru_crawler_maintainer_thread lru_crawler_sleep lru_crawler_to_crawl \
        lru_crawler_warm_max_factor lru_crawler_warm_percent malloced_bytes \
        max_connections process_resident_memory_bytes process_start_time_seconds \
        proxy_backend_failed proxy_backend_total proxy_req_active slab_chunk_size_bytes \
        slab_chunks_free slab_chunks_free_end slab_chunks_per_page slab_chunks_used \
        slab_cold_items slab_current_chunks slab_current_items slab_current_pages \
        slab_hot_age_seconds slab_hot_items slab_items_age_seconds slab_temporary_items \
        slab_warm_age_seconds slab_warm_items time_seconds up version";

    #[test]
    fn names_and_types_are_those_of_the_exporter() {
        for (kind, names) in [(MetricKind::Counter, COUNTERS), (MetricKind::Gauge, GAUGES)] {
            let families = LISTS.iter().flat_map(|list| list.families);
            let ours = families.filter(|family| family.kind == kind);
            let ours: BTreeSet<_> = ours.map(|family| family.name.to_owned()).collect();
            let names = names.split_whitespace().map(|name| format!("memcached_{name}"));
            assert_eq!(ours, names.collect(), "{kind:?}");
        }
    }

    #[test]
    fn every_name_is_listed_once() {
        let mut names = BTreeSet::new();
        for family in LISTS.iter().flat_map(|list| list.families) {
            assert!(names.insert(family.name), "{} twice", family.name);
            assert!(family.name.starts_with("memcached_"));
            assert!(!family.samples.is_empty());
        }
    }
}
