//! Breaks the rules that protect data, one at a time, to check that some world detects each broken
//! rule.

use crate::Worlds;
use larder_engine::rule::Rule;
use sim::Plan;
use std::io::Write;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Operations per world: enough to fill memory in some worlds, and few enough to run many worlds
/// per minute.
const STEPS: u64 = 1500;
/// Operations in each life of a world with several threads. Such a world needs more operations than
/// others, because its threads interfere with each other only now and then.
const STEPS_OF_THREADS: u64 = 15_000;
/// The longest time that `--break all` searches without a broken rule, in seconds. This search must
/// find nothing.
const CONTROL_SECONDS: u64 = 10;

/// The seed of the running world, for the panic message.
static SEED: AtomicU64 = AtomicU64::new(0);

/// Runs the search that `--break what` requests.
pub(crate) fn run(what: &str, worlds: Worlds, from: u64, seconds: u64) -> ExitCode {
    let number = what.parse().ok().and_then(|number: usize| number.checked_sub(1));
    match (what, number.and_then(|at| Rule::ALL.get(at))) {
        ("list", _) => {
            for rule in Rule::ALL {
                println!("{:2}  {}", rule as u8, rule.when_broken());
            }
            ExitCode::SUCCESS
        }
        ("all", _) => all(from, seconds),
        ("none", _) => search(worlds, from, seconds),
        (_, Some(rule)) => {
            rule.break_it();
            search(worlds, from, seconds)
        }
        _ => {
            eprintln!("--break takes a number from 1 to {}, all, none or list", Rule::ALL.len());
            ExitCode::from(2)
        }
    }
}

/// Runs worlds until one disagrees with its model or `seconds` have passed. A disagreement is a
/// failure of the process, even if a rule was broken on purpose.
#[expect(clippy::disallowed_methods, reason = "a search has a time limit; no world knows of it")]
fn search(worlds: Worlds, from: u64, seconds: u64) -> ExitCode {
    let steps = if matches!(worlds, Worlds::Threads) { STEPS_OF_THREADS } else { STEPS };
    let began = Instant::now();
    let found = move |what: &dyn std::fmt::Display| {
        let (seed, took) = (SEED.load(Ordering::Relaxed), began.elapsed().as_secs_f64());
        println!("found at seed {seed} after {took:.1} s: {what}");
    };
    // A failed assertion counts as a disagreement and ends the process.
    std::panic::set_hook(Box::new(move |panic| {
        found(&panic.payload_as_str().unwrap_or("a panic"));
        let _ = std::io::stdout().flush();
        std::process::exit(1);
    }));
    for seed in from.. {
        if began.elapsed() >= Duration::from_secs(seconds) {
            println!("not found in {} worlds, {seconds} s", seed - from);
            break;
        }
        SEED.store(seed, Ordering::Relaxed);
        if let Err(failure) = worlds.run(Plan { seed, steps }) {
            found(&format_args!("step {}: {}", failure.step, failure.what));
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Breaks each rule in a separate process. Succeeds if every broken rule is detected and a run
/// without broken rules finds nothing.
fn all(from: u64, seconds: u64) -> ExitCode {
    let Ok(program) = std::env::current_exe() else { return ExitCode::from(2) };
    let search = |what: &str, seconds: u64| {
        let (from, seconds) = (from.to_string(), seconds.to_string());
        let run = Command::new(&program)
            .args(["--break", what, "--from", &from, "--seconds", &seconds])
            .output();
        run.map_or_else(
            |error| error.to_string(),
            |run| {
                let said = String::from_utf8_lossy(&run.stdout);
                said.lines().next().unwrap_or("the process died").to_owned()
            },
        )
    };
    let control = search("none", seconds.min(CONTROL_SECONDS));
    println!("none  {control}");
    let mut right = usize::from(control.starts_with("not found"));
    for rule in Rule::ALL {
        let result = search(&(rule as u8).to_string(), seconds);
        right += usize::from(result.starts_with("found"));
        println!("{:4}  {}\n      {result}", rule as u8, rule.when_broken());
    }
    let wrong = Rule::ALL.len() + 1 - right;
    println!("rules: {right} passed, {wrong} failed");
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
