//! The lab: the experiments of four articles, run against Larder and its peers.
//!
//! `target` finds, starts and stops the systems, `experiment` measures them, `journal` keeps every
//! point, `record` is the form of the results, and `report` draws the page.

pub(crate) mod disk;
pub(crate) mod experiment;
pub(crate) mod files;
pub(crate) mod journal;
pub(crate) mod plan;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod target;
