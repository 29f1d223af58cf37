//! A metric of the memcached exporter.

use crate::stats::metric::MetricKind;

/// A metric of the exporter.
pub(in crate::stats) struct Family {
    pub(in crate::stats) name: &'static str,
    /// A counter or a gauge. The exporter calls some gauges counters, and Larder gives them the
    /// same type as the exporter.
    pub(in crate::stats) kind: MetricKind,
    /// The labels and the formula of each sample. In the labels, the name of a row in braces stands
    /// for the text of the row.
    pub(in crate::stats) samples: &'static [(&'static str, &'static str)],
    /// The help text; empty if the help of the formula's row is used.
    pub(in crate::stats) help: &'static str,
}

pub(super) const fn counter(
    name: &'static str,
    samples: &'static [(&'static str, &'static str)],
) -> Family {
    Family { name, kind: MetricKind::Counter, samples, help: "" }
}

pub(super) const fn gauge(
    name: &'static str,
    samples: &'static [(&'static str, &'static str)],
) -> Family {
    Family { name, kind: MetricKind::Gauge, samples, help: "" }
}

impl Family {
    pub(super) const fn help(mut self, help: &'static str) -> Family {
        self.help = help;
        self
    }
}
