//! The lab: the experiments of four articles, run against Larder and its peers.
//!
//! `target` finds, starts and stops the systems, and `report` draws the page.

pub(crate) mod report;
pub(crate) mod target;
