//! The experiments. Most of them repeat the measurements of four articles, and the comments of this
//! module name an article by its year:
//!
//! - 2015: "Cache Benchmark", on counters of rate limits in seven stores
//! - 2019: "Caching beyond RAM: Riding the cliff", on memcached with values on flash
//! - 2021: "Performance Test of ARCUS Data Persistence"
//! - 2024: "Caches e Bancos de Dados: Convergindo ou Divergindo?", on memcached and ScyllaDB

mod active_record;
pub(crate) mod cliff;
pub(crate) mod converge;
pub(crate) mod cost;
pub(crate) mod counter;
mod flash;
pub(crate) mod hitratio;
pub(crate) mod limits;
mod memtier;
mod overwrites;
pub(crate) mod persistence;
pub(crate) mod rack_attack;
pub(crate) mod restart;

use std::path::Path;

use self::converge::{Converge, ConvergePart};
use super::plan::Plan;
use super::run::Turn;
use super::target::{Sandbox, System};
use crate::Result;

/// A point of an experiment: the series and the position on the horizontal axis.
pub(crate) type Case = (&'static str, Option<f64>);

/// One experiment: the systems that take part, and the measurements of one turn. In each round,
/// each system has one turn.
pub(crate) trait Experiment: std::fmt::Debug {
    fn id(&self) -> &'static str;
    fn title(&self) -> &'static str;
    /// The question that the experiment answers.
    fn question(&self) -> &'static str;
    /// The conditions that are equal for all systems, one per line.
    fn conditions(&self, plan: &Plan) -> Vec<String>;
    /// Number of rounds in which the systems take turns.
    fn rounds(&self, plan: &Plan) -> usize {
        plan.rounds
    }
    /// Returns true if the system takes part.
    fn takes(&self, system: &System) -> bool;
    /// Returns the points that a system has in a round.
    fn cases(&self, plan: &Plan, system: &System, round: usize) -> Vec<Case>;
    /// Returns the directory and the resources that the server gets.
    fn sandbox(&self, plan: &Plan, system: &System, directory: &Path) -> Result<Sandbox>;
    /// Measures the points of one turn.
    fn run(&self, turn: &mut Turn<'_>) -> Result<()>;
}

/// Returns all experiments, in the order in which they run.
pub(crate) fn all() -> Vec<Box<dyn Experiment>> {
    vec![
        Box::new(counter::Counter),
        Box::new(rack_attack::RackAttack),
        Box::new(persistence::Persistence),
        Box::new(cliff::Cliff),
        Box::new(Converge(ConvergePart::Fit)),
        Box::new(Converge(ConvergePart::Ram)),
        Box::new(Converge(ConvergePart::DiskSmall)),
        Box::new(Converge(ConvergePart::DiskLarge)),
        Box::new(hitratio::Hitratio),
        Box::new(restart::Restart),
        Box::new(limits::Limits),
        Box::new(cost::Cost),
    ]
}
