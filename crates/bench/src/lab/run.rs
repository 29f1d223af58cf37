//! Runs experiments. The systems take turns, and every point goes into the journal. An interrupted
//! run continues with the points that the journal lacks.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::experiment::Experiment;
use super::journal::Journal;
use super::plan::Plan;
use super::record::{Point, PointId, SystemRow};
use super::target::{Found, Sandbox, Server, System};
use crate::generator::Load;
use crate::interrupt::is_interrupted;
use crate::wire::Wire;
use crate::{Error, Result, complain};

/// A system that was found on this machine.
#[derive(Debug)]
pub(crate) struct InstalledSystem {
    pub(crate) system: System,
    pub(crate) found: Found,
}

/// The state of a run.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) plan: Plan,
    pub(crate) journal: Journal,
    pub(crate) installed: Vec<InstalledSystem>,
    /// The directory in which the servers keep their files.
    pub(crate) directory: PathBuf,
    /// A directory on another device, for systems that use two.
    pub(crate) second_directory: Option<PathBuf>,
}

/// One system's turn in one round of an experiment.
pub(crate) struct Turn<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) system: &'a System,
    pub(crate) server: &'a mut Server,
    pub(crate) round: usize,
    found: &'a Found,
    directory: &'a Path,
    /// The id of the system to which measured points belong: the id of `system`, or of a control,
    /// see [`Turn::control`].
    id: &'static str,
    experiment: &'static str,
    journal: &'a mut Journal,
}

/// The plan of a turn: the indices of the experiment and of the installed system, and the round.
struct PlannedTurn {
    experiment: usize,
    system: usize,
    round: usize,
}

impl Lab {
    /// Checks that the journal's points were measured with the installed versions of the systems.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] for the first system whose installed version differs from that in
    /// the journal. The error names both versions.
    pub(crate) fn require_same_versions(&self) -> Result<()> {
        for InstalledSystem { system, found } in &self.installed {
            if !self.journal.systems().any(|known| known.id == system.id) {
                continue;
            }
            // A program that does not report a version cannot be started either. Its turn reports
            // the error.
            if let Ok(version) = found.version() {
                self.journal.require_version(system.id, &version)?;
            }
        }
        Ok(())
    }

    /// Measures the points that the journal lacks. Returns false if a signal has ended the run
    /// early.
    pub(crate) fn run(&mut self, experiments: &[Box<dyn Experiment>]) -> Result<bool> {
        let turns = self.open_turns(experiments);
        let (began, count) = (Instant::now(), turns.len());
        for (done, turn) in turns.into_iter().enumerate() {
            if is_interrupted() {
                return Ok(false);
            }
            let experiment = &*experiments[turn.experiment];
            let name = self.installed[turn.system].system.name;
            let left = time_left(began.elapsed(), done, count);
            complain!(
                "[{}/{count}{left}] {}, round {}: {name}",
                done + 1,
                experiment.id(),
                turn.round
            );
            self.take_turn(experiment, &turn)?;
        }
        Ok(!is_interrupted())
    }

    /// Returns true if the journal has all points of the installed systems. Returns false if no
    /// system is installed.
    pub(crate) fn is_done(&self, experiments: &[Box<dyn Experiment>]) -> bool {
        !self.installed.is_empty() && self.open_turns(experiments).is_empty()
    }

    /// Returns true if the journal has some points of a system in an experiment and lacks others.
    /// Points that a failed turn owes do not count, because the report gives the reason. `systems`
    /// are all systems of the lab, because an earlier run may have measured other systems.
    pub(crate) fn lacks_points(
        &self,
        experiments: &[Box<dyn Experiment>],
        systems: &[System],
    ) -> bool {
        experiments.iter().any(|experiment| {
            let id = experiment.id();
            let began = |system: &&System| {
                let has_point = |point: &Point| point.id.system == system.id;
                experiment.takes(system) && self.journal.points(id).any(has_point)
            };
            let is_open = |point_id: PointId| {
                !self.journal.has(id, &point_id) && !self.journal.is_owed(id, &point_id)
            };
            systems.iter().filter(began).any(|system| {
                (1..=experiment.rounds(&self.plan))
                    .any(|round| point_ids(&**experiment, &self.plan, system, round).any(is_open))
            })
        })
    }

    /// Returns the turns with points that the journal lacks, in the order in which they are
    /// measured. In each round of an experiment, each system has one turn. So the turns of two
    /// rounds with three systems are A B C A B C.
    fn open_turns(&self, experiments: &[Box<dyn Experiment>]) -> Vec<PlannedTurn> {
        let mut turns = Vec::new();
        for (number, experiment) in experiments.iter().enumerate() {
            for round in 1..=experiment.rounds(&self.plan) {
                for (at, InstalledSystem { system, .. }) in self.installed.iter().enumerate() {
                    let open = experiment.takes(system)
                        && point_ids(&**experiment, &self.plan, system, round)
                            .any(|point_id| !self.journal.has(experiment.id(), &point_id));
                    if open {
                        turns.push(PlannedTurn { experiment: number, system: at, round });
                    }
                }
            }
        }
        turns
    }

    /// Starts the server of one turn, measures its points and stops the server. Notes a failure in
    /// the journal as the reason for the missing points, unless a signal has ended the run.
    ///
    /// # Errors
    /// Returns an error if the reason cannot be noted.
    fn take_turn(&mut self, experiment: &dyn Experiment, planned: &PlannedTurn) -> Result<()> {
        let InstalledSystem { system, found } = &self.installed[planned.system];
        let sandbox = experiment.sandbox(&self.plan, system, &self.directory);
        let sandbox = sandbox.and_then(|sandbox| match &self.second_directory {
            Some(second) if system.uses_flash() => sandbox.with_second(second),
            _ => Ok(sandbox),
        });
        let result = sandbox.and_then(|sandbox| found.start(&sandbox)).and_then(|mut server| {
            self.journal.system(experiment.id(), row(system, &server))?;
            if let Some(wire) = server.wire() {
                wire.prepare(&server.address)?;
            }
            let mut turn = Turn {
                plan: &self.plan,
                system,
                server: &mut server,
                round: planned.round,
                found,
                directory: &self.directory,
                id: system.id,
                experiment: experiment.id(),
                journal: &mut self.journal,
            };
            experiment.run(&mut turn)
        });
        match result {
            Err(error) if !is_interrupted() => {
                complain!("  {}: {error}", system.name);
                let (id, point_ids) =
                    (experiment.id(), point_ids(experiment, &self.plan, system, planned.round));
                let owed = point_ids.filter(|point_id| !self.journal.has(id, point_id)).collect();
                self.journal.not_run(id, system.id, error.to_string(), owed)
            }
            _ => Ok(()),
        }
    }
}

/// Returns the ids of all points of a turn.
fn point_ids<'a>(
    experiment: &dyn Experiment,
    plan: &Plan,
    system: &'a System,
    round: usize,
) -> impl Iterator<Item = PointId> + use<'a> {
    let cases = experiment.cases(plan, system, round);
    cases.into_iter().map(move |(case, x)| PointId {
        system: system.id.to_owned(),
        case: case.to_owned(),
        x,
        round,
    })
}

fn row(system: &System, server: &Server) -> SystemRow {
    SystemRow {
        id: system.id.to_owned(),
        name: system.name.to_owned(),
        family: system.family.to_owned(),
        durability: system.durability.name().to_owned(),
        version: server.version.clone(),
        stand_in: system.stand_in.map(str::to_owned),
        settings: server.settings.clone(),
    }
}

/// Returns the estimated remaining time of the run, for the progress line.
fn time_left(elapsed: Duration, done: usize, count: usize) -> String {
    if done == 0 {
        return String::new();
    }
    let left = elapsed.as_secs_f64() / done as f64 * (count - done) as f64;
    format!(", about {:.0} min left", (left / 60.0).ceil())
}

impl Turn<'_> {
    /// Returns a closed loop of one connection against this turn's server.
    pub(crate) fn load(&self) -> Load {
        Load {
            connections: 1,
            threads: 1,
            duration: Some(self.plan.time),
            warm_up: self.plan.warm_up,
            grace: Duration::from_secs(2),
            seed: self.round as u64,
            probe: Some(self.server.probe()),
            wire: self.wire(),
            ..Load::new(self.server.address.clone())
        }
    }

    pub(crate) fn wire(&self) -> Option<Arc<dyn Wire>> {
        self.server.wire()
    }

    /// Starts a second, empty server of the same system. `memory` is its limit in MiB.
    ///
    /// # Errors
    /// Returns an error if the server does not start.
    pub(crate) fn another(&self, memory: u64, connections: usize) -> Result<Server> {
        self.found.start(&sandbox(self.plan, self.directory, memory, connections)?)
    }

    /// Returns the depth of pipelines to use: `depth`, or 1 if the server may answer the requests
    /// of a connection in another order than it received them.
    pub(crate) fn depth(&self, depth: usize) -> usize {
        match self.wire() {
            Some(wire) if !wire.keeps_order() => 1,
            _ => depth,
        }
    }

    /// Measures one point, unless the journal has it. If `measure` returns [`Error::Void`], the
    /// journal gets a void point with the reason.
    pub(crate) fn point(
        &mut self,
        case: &str,
        x: Option<f64>,
        measure: impl FnOnce(PointId) -> Result<Point>,
    ) -> Result<()> {
        self.point_of(case, x, |_, point_id| measure(point_id))
    }

    /// Like [`Turn::point`], but also passes this turn to `measure`.
    pub(crate) fn point_of(
        &mut self,
        case: &str,
        x: Option<f64>,
        measure: impl FnOnce(&Self, PointId) -> Result<Point>,
    ) -> Result<()> {
        let point_id = self.point_id(case, x);
        if is_interrupted() || self.journal.has(self.experiment, &point_id) {
            return Ok(());
        }
        let point = match measure(self, point_id.clone()) {
            Err(Error::Void(why)) => {
                complain!("  {} {case}: {why}", self.id);
                Point::void(point_id, why)
            }
            other => other?,
        };
        // A signal has cut the measurement short, so its point does not count.
        if is_interrupted() {
            return Ok(());
        }
        self.journal.add(self.experiment, point)
    }

    /// Returns true if the journal lacks this point of the turn.
    pub(crate) fn is_missing(&self, case: &str, x: Option<f64>) -> bool {
        !self.journal.has(self.experiment, &self.point_id(case, x))
    }

    fn point_id(&self, case: &str, x: Option<f64>) -> PointId {
        PointId { system: self.id.to_owned(), case: case.to_owned(), x, round: self.round }
    }

    /// Returns the id of the system whose points are measured: the turn's system, or a control.
    pub(crate) fn id(&self) -> &'static str {
        self.id
    }

    /// Calls `measure` with the id of a control in place of the system's id. A control is a system
    /// without a server, for comparison. Only the first turn of a round measures its points,
    /// because later turns find them in the journal.
    pub(crate) fn control(
        &mut self,
        id: &'static str,
        measure: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let own = std::mem::replace(&mut self.id, id);
        let result = measure(self);
        self.id = own;
        result
    }

    /// Adds a control to the systems of the journal.
    pub(crate) fn note_system(&mut self, row: SystemRow) -> Result<()> {
        self.journal.system(self.experiment, row)
    }

    /// Returns the point of `system` in this round and case, if it was measured.
    pub(crate) fn measured(&self, system: &str, case: &str) -> Option<&Point> {
        let is_it = |point_id: &PointId| {
            point_id.system == system && point_id.case == case && point_id.round == self.round
        };
        self.journal.points(self.experiment).find(|point| is_it(&point.id))
    }
}

/// Makes a [`Sandbox`] in `directory`: a directory and resources for a server. `memory` is the
/// limit in MiB.
pub(crate) fn sandbox(
    plan: &Plan,
    directory: &Path,
    memory: u64,
    connections: usize,
) -> Result<Sandbox> {
    Sandbox::new(directory, memory, plan.server_threads, connections)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::lab::experiment::counter::Counter;
    use crate::lab::journal::Identity;
    use crate::lab::plan::Scale;
    use crate::lab::record::Figures;
    use crate::lab::target;

    #[test]
    fn points_of_systems_that_are_not_selected_are_open_too() {
        let directory =
            std::env::temp_dir().join(format!("larder-lab-open-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        let journal = Journal::open(&directory, &Identity::default()).unwrap();
        let plan = Plan::of(Scale::Small);
        let mut lab = Lab {
            plan,
            journal,
            installed: Vec::new(),
            directory: directory.clone(),
            second_directory: None,
        };
        let systems = target::catalogue();
        let experiments: Vec<Box<dyn Experiment>> = vec![Box::new(Counter)];
        assert!(!lab.is_done(&experiments), "no system was found");
        assert!(!lab.lacks_points(&experiments, &systems), "nothing was begun");
        let system = systems.iter().find(|system| Counter.takes(system)).unwrap();
        let rounds = 1..=Counter.rounds(&lab.plan);
        let mut all: Vec<PointId> =
            rounds.flat_map(|round| point_ids(&Counter, &lab.plan, system, round)).collect();
        let last = all.pop().unwrap();
        for point_id in all {
            lab.journal.add("counter", Point::new(point_id, Figures::default())).unwrap();
        }
        assert!(lab.lacks_points(&experiments, &systems));
        lab.journal.not_run("counter", system.id, "no port".into(), vec![last]).unwrap();
        assert!(!lab.lacks_points(&experiments, &systems), "the report gives the reason");
        fs::remove_dir_all(directory).unwrap();
    }
}
