//! What models of this crate and of the engine have in common.

use loom::thread::{self, JoinHandle};
use std::collections::BTreeSet;
use std::sync::Mutex;

/// Loom's own stacks are too small for a log.
const STACK: usize = 1 << 20;
/// Operations of all threads in one run, at most.
const OPERATIONS: usize = 50_000;

/// Runs `model` with every interleaving that takes the processor from a thread so many times at most,
/// beside all that the memory orders allow. What it does before it calls [`loom::explore`] is done
/// once in a run, in order.
pub fn check(switches: usize, model: impl Fn() + Clone + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(switches);
    builder.max_branches = OPERATIONS;
    builder.expect_explicit_explore = true;
    builder.check(move || spawn(model.clone()).join().expect("the model's main thread"));
}

/// A thread of a model.
pub fn spawn<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    thread::Builder::new().stack_size(STACK).spawn(run).expect("a thread")
}

/// What came out of the runs of a model, so that one that never gets to where it hurts is noticed.
#[derive(Debug)]
pub struct Outcomes<T>(Mutex<BTreeSet<T>>);

impl<T> Default for Outcomes<T> {
    fn default() -> Self {
        Outcomes(Mutex::new(BTreeSet::new()))
    }
}

impl<T: Ord + Copy> Outcomes<T> {
    /// This came out of a run.
    pub fn note(&self, outcome: T) {
        self.0.lock().expect("no run panics here").insert(outcome);
    }

    /// All that came out, in order.
    pub fn all(&self) -> Vec<T> {
        self.0.lock().expect("no run panics here").iter().copied().collect()
    }
}
