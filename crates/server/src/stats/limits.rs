//! `stats limits`: the policies of rate limits with their counters.

use larder_engine::limit::Algorithm;

use super::rows::Row;
use crate::server::Running;
use crate::settings::{algorithm_name, durability_name, show_window};

pub(super) fn rows(running: &Running, row: &mut Row<'_>) {
    for policy in running.policies().iter() {
        let mut put = |what: &str, value: &dyn std::fmt::Display| {
            row(&format!("limit:{}:{what}", policy.name), format_args!("{value}"));
        };
        let limit = &policy.limit;
        if let Some(prefix) = &policy.prefix {
            put("prefix", prefix);
        }
        put("algorithm", &algorithm_name(limit.algorithm()));
        put("budget", &limit.budget());
        put("window", &show_window(limit.window()));
        if limit.algorithm() == Algorithm::Gcra {
            put("burst", &limit.burst());
        }
        put("enforced", &if policy.shadow { "no" } else { "yes" });
        if let Some(durability) = policy.durability {
            put("durability", &durability_name(durability));
        }
        for (result, count) in policy.counters.totals() {
            put(result, &count);
        }
    }
}
