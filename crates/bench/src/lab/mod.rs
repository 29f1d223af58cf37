//! The lab: experiments, most of them from four articles, with Larder and its peers.
//!
//! A *system* is a server program with one durability setting. `target` finds, starts and stops the
//! systems, `experiment` measures them, `run` decides the order, and `journal` stores every
//! measured point. `record` defines the result file, and `report` makes an HTML page of it.

pub(crate) mod disk;
pub(crate) mod experiment;
pub(crate) mod files;
pub(crate) mod journal;
pub(crate) mod plan;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod target;
