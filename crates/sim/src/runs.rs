//! Runs many worlds, on several threads if requested.

use crate::Worlds;
use sim::{Plan, WorldCounts};
use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Interval between progress reports of a long run.
const REPORT: Duration = Duration::from_secs(5);

/// The worlds to run.
pub(crate) struct Runs {
    pub(crate) worlds: Worlds,
    pub(crate) seeds: Range<u64>,
    pub(crate) steps: u64,
    pub(crate) jobs: u64,
    /// The number of disagreements after which no more worlds are started.
    pub(crate) stop_after: u64,
}

impl Runs {
    /// Runs the worlds. Reports progress on the standard error output, and the totals at the end.
    #[expect(clippy::disallowed_methods, reason = "says how long a run has taken; no world knows")]
    pub(crate) fn run(self) -> ExitCode {
        let Runs { worlds, seeds, steps, jobs, stop_after } = self;
        let of = seeds.end - seeds.start;
        let (next, stop) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
        let (sender, outcomes) = mpsc::channel();
        let work = |sender: mpsc::Sender<_>| {
            while !stop.load(Ordering::Relaxed) {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= seeds.end || sender.send(worlds.run(Plan { seed, steps })).is_err() {
                    return;
                }
            }
        };
        let (mut done, mut failures) = (0u64, 0u64);
        let mut counts = WorldCounts::default();
        let began = Instant::now();
        thread::scope(|scope| {
            for _ in 0..jobs {
                let sender = sender.clone();
                scope.spawn(|| work(sender));
            }
            drop(sender);
            let mut report = began + REPORT;
            loop {
                match outcomes.recv_timeout(report.saturating_duration_since(Instant::now())) {
                    Ok(outcome) => {
                        done += 1;
                        match outcome {
                            Ok(world) => counts += world,
                            Err(failure) => {
                                failures += 1;
                                let (name, seed) = (worlds.name(), failure.seed);
                                eprintln!("{failure}");
                                eprintln!(
                                    "replay: cargo run -p sim -- --worlds {name} --steps {steps} \
                                     --seed {seed}"
                                );
                            }
                        }
                        stop.fetch_or(failures >= stop_after, Ordering::Relaxed);
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        let rate = done as f64 / began.elapsed().as_secs_f64();
                        eprintln!("{done} of {of} worlds, {rate:.0}/s, {failures} disagree");
                        report += REPORT;
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        });
        let took = began.elapsed().as_secs_f64();
        if failures > 0 {
            println!("{failures} of {done} worlds of {steps} steps disagree, {took:.0} s");
            return ExitCode::FAILURE;
        }
        if counts.moved > 0 {
            let WorldCounts { moved, interrupted, .. } = counts;
            println!(
                "{moved} segments moved to lower devices, {interrupted} power losses met some"
            );
        }
        if counts.grown > 0 {
            println!("{} devices grew while they were used", counts.grown);
        }
        if counts.early > 0 {
            let WorldCounts { early, kept, .. } = counts;
            println!("{early} early writes, which kept {kept} changes when a process was killed");
        }
        if counts.unread > 0 {
            println!("{} sets superseded items without reading them", counts.unread);
        }
        if counts.set_back > 0 {
            println!("{} reboots set the clock of a store back", counts.set_back);
        }
        println!("{done} worlds of {steps} steps agree with the model, {took:.0} s");
        ExitCode::SUCCESS
    }
}
