//! `stats limits`: the policies of rate limits with their counters.

use larder_engine::limit::Algorithm;

use super::super::metric::MetricKind::{Counter, Gauge, Info};
use super::super::metric::{Metric, of_policy, some};
use crate::policies::{DecisionResult, Policy};
use crate::settings::{algorithm_name, durability_name, show_window};

const fn decisions(
    row: &'static str,
    labels: &'static str,
    help: &'static str,
    read: fn(&Policy) -> Option<super::super::metric::Reading>,
) -> Metric {
    of_policy(row, Counter, help, read).named("larder_limit_decisions_total").labels(labels)
}

pub(super) static METRICS: &[Metric] = &[
    of_policy("limit:NAME:prefix", Info, "The policy's prefix of keys.", |p| {
        p.prefix.as_deref().map(Into::into)
    }),
    of_policy("limit:NAME:domain", Info, "The domain of its descriptors.", |p| {
        p.descriptor.as_ref().map(|pattern| pattern.domain.as_str().into())
    }),
    of_policy(
        "limit:NAME:descriptor",
        Info,
        "The entries of the descriptors of Envoy that the policy limits.",
        |p| {
            let entries = p.descriptor.as_ref()?.entries.iter().map(ToString::to_string);
            some(entries.collect::<Vec<_>>().join(", "))
        },
    ),
    of_policy("limit:NAME:algorithm", Info, "`fixed`, `sliding` or `gcra`.", |p| {
        some(algorithm_name(p.limit.algorithm()))
    }),
    of_policy("limit:NAME:budget", Gauge, "Units per window.", |p| some(p.limit.budget())).apart(),
    of_policy("limit:NAME:window", Info, "The length of the window; `0s` is for ever.", |p| {
        some(show_window(p.limit.window()))
    }),
    of_policy("limit:NAME:burst", Gauge, "With `gcra`: units that may be taken at once.", |p| {
        (p.limit.algorithm() == Algorithm::Gcra).then(|| p.limit.burst().into())
    })
    .apart(),
    of_policy("limit:NAME:enforced", Info, "`no` if the policy is a shadow.", |p| {
        some(if p.shadow { "no" } else { "yes" })
    }),
    of_policy("limit:NAME:durability", Info, "When replies about its limiters are sent.", |p| {
        p.durability.map(|durability| durability_name(durability).into())
    }),
    decisions(
        "limit:NAME:within",
        r#"result="within""#,
        "Requests that passed, and increments of plain counters, after which at most 80 % of the \
         budget (with `gcra`: of the burst) was used.",
        |p| some(p.counters.total(DecisionResult::Within)),
    ),
    decisions(
        "limit:NAME:near",
        r#"result="near""#,
        "Such requests and increments, after which more than 80 % was used.",
        |p| some(p.counters.total(DecisionResult::Near)),
    ),
    decisions(
        "limit:NAME:over",
        r#"result="over""#,
        "Refused requests, and increments of plain counters to a number above the budget (with \
         `gcra`: above the burst).",
        |p| some(p.counters.total(DecisionResult::Over)),
    ),
    decisions(
        "limit:NAME:shadow",
        r#"result="shadow""#,
        "Requests that passed only because the policy is a shadow.",
        |p| some(p.counters.total(DecisionResult::Shadow)),
    ),
];
