//! Code shared by the loom models of this crate and of the engine.

use loom::thread::{self, JoinHandle};
use std::collections::BTreeSet;
use std::sync::Mutex;

/// Bytes of a model thread's stack. Loom's own stacks are too small for a log.
const STACK: usize = 1 << 20;
/// The largest number of operations of all threads in one run of a model.
const OPERATIONS: usize = 50_000;

/// Runs `model` many times: with every interleaving that preempts threads at most `switches` times,
/// and in each with every value that the memory orderings allow a load to return. The part of
/// `model` before its call of [`loom::explore`] always runs in program order.
pub fn check(switches: usize, model: impl Fn() + Clone + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(switches);
    builder.max_branches = OPERATIONS;
    builder.expect_explicit_explore = true;
    builder.check(move || spawn(model.clone()).join().expect("the model's main thread"));
}

/// Spawns a thread of a model.
pub fn spawn<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    thread::Builder::new().stack_size(STACK).spawn(run).expect("a thread")
}

/// The outcomes of a model's runs. A test that expects all of them fails if its model never reaches
/// the critical interleavings.
#[derive(Debug)]
pub struct Outcomes<T>(Mutex<BTreeSet<T>>);

impl<T> Default for Outcomes<T> {
    fn default() -> Self {
        Outcomes(Mutex::new(BTreeSet::new()))
    }
}

impl<T: Ord + Copy> Outcomes<T> {
    /// Notes the outcome of a run.
    pub fn note(&self, outcome: T) {
        self.0.lock().expect("no run panics here").insert(outcome);
    }

    /// Returns all outcomes, in order.
    pub fn all(&self) -> Vec<T> {
        self.0.lock().expect("no run panics here").iter().copied().collect()
    }
}
