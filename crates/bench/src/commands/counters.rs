//! `larder bench counters`: a growing number of connections increment the same key. This measures
//! how much the connections slow each other down, because they contend for one item. A lost update
//! would show as a number that the server returned twice.

use std::time::Duration;

use clap::Args;
use larder_client::{Address, Client, Options};
use serde::Serialize;

use super::output::{JsonFile, Table};
use crate::generator::{Load, ServerUse};
use crate::process::Probe;
use crate::workload::{FIRST_COUNTER, Mix, Shape, Verb};
use crate::{Error, Result};

/// The connections, and the time for each number of them.
#[derive(Clone, Debug, Args)]
pub struct CountersArguments {
    /// Server to load: HOST:PORT or unix:PATH
    #[arg(long, default_value = "127.0.0.1:11211")]
    server: String,
    /// Largest number of connections; each number from 1 to this one is measured
    #[arg(short, long, default_value_t = 10)]
    connections: usize,
    /// Number of generator threads, at most one per connection
    #[arg(short, long, default_value_t = 1)]
    threads: usize,
    /// Seconds to measure each number of connections
    #[arg(long, default_value_t = 3.0, value_name = "SECONDS")]
    time: f64,
    /// Requests in flight per connection
    #[arg(short = 'd', long, default_value_t = 1)]
    pipeline: usize,
    /// Processor to run the generator's threads on
    #[arg(long, value_name = "CPU")]
    pin: Option<usize>,
    #[command(flatten)]
    json: JsonFile,
}

#[derive(Debug, Serialize)]
struct Step {
    connections: usize,
    increments: u64,
    increments_per_second: f64,
    p50_us: f64,
    p99_us: f64,
    server: Option<ServerUse>,
}

impl CountersArguments {
    pub(super) fn run(self) -> Result<()> {
        let address: Address = self.server.parse()?;
        let time = Duration::try_from_secs_f64(self.time)
            .map_err(|_| Error::usage("the time is no duration"))?;
        let mut steps = Vec::new();
        for connections in 1..=self.connections {
            let load = Load {
                connections,
                threads: self.threads.min(connections),
                pipeline: self.pipeline,
                duration: Some(time),
                warm_up: Duration::ZERO,
                cpu: self.pin,
                probe: Probe::of_listener(&address),
                ..Load::new(address.clone())
            };
            steps.push(step(&load)?);
        }
        let note =
            "Every increment of every step was counted once: all replies differ, none missing.";
        let table = Table::of(
            1,
            &steps,
            &[
                ("connections", &|step| step.connections.to_string()),
                ("increments/s", &|step| format!("{:.0}", step.increments_per_second)),
                ("p50 µs", &|step| format!("{:.1}", step.p50_us)),
                ("p99 µs", &|step| format!("{:.1}", step.p99_us)),
                ("server CPU µs/op", &|step| {
                    step.server
                        .map_or("–".into(), |server| format!("{:.2}", server.cpu_us_per_request))
                }),
                ("counted", &|step| step.increments.to_string()),
            ],
        );
        self.json.report(Table { notes: vec![note.to_owned()], ..table }, &steps)
    }
}

fn step(load: &Load) -> Result<Step> {
    let shape = Shape { mix: Mix::only(Verb::Incr), keys: 1, ..Shape::default() };
    let mut client = Client::connect_to(&load.server, Options::default())?;
    client.set(FIRST_COUNTER, b"0", 0, 0)?;
    let load = Load { collect_numbers: true, ..load.clone() };
    let summary = load.run(shape)?.without_errors()?;
    let value = client.get(FIRST_COUNTER)?.map(|item| item.value).unwrap_or_default();
    check_numbers(&summary.numbers, &value)?;
    Ok(Step {
        connections: load.connections,
        increments: summary.numbers.len() as u64,
        increments_per_second: summary.requests_per_second,
        p50_us: summary.latency.get("p50"),
        p99_us: summary.latency.get("p99"),
        server: summary.server,
    })
}

/// Checks that N increments of a counter, starting at 0, returned each of 1..=N once and left N as
/// its value.
fn check_numbers(numbers: &[u64], value: &[u8]) -> Result<()> {
    let void = |text: String| Err(Error::Void(text));
    let mut seen = vec![false; numbers.len()];
    for &number in numbers {
        let index = usize::try_from(number).unwrap_or(usize::MAX).wrapping_sub(1);
        match seen.get_mut(index) {
            Some(seen) if !*seen => *seen = true,
            Some(_) => return void(format!("the number {number} was answered twice")),
            None => {
                return void(format!("the number {number} in only {} increments", numbers.len()));
            }
        }
    }
    let text = String::from_utf8_lossy(value);
    if text.trim_end().parse() != Ok(numbers.len() as u64) {
        return void(format!("the counter stands at {text:?} after {} increments", numbers.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_doubled_and_invented_increments_are_found() {
        assert!(check_numbers(&[2, 1, 3], b"3").is_ok());
        assert!(check_numbers(&[], b"0").is_ok());
        assert!(check_numbers(&[1, 2, 2], b"3").is_err());
        assert!(check_numbers(&[1, 2, 4], b"3").is_err());
        assert!(check_numbers(&[0, 1, 2], b"3").is_err());
        assert!(check_numbers(&[1, 2, 3], b"4").is_err());
        assert!(check_numbers(&[1, 2, 3], b"").is_err());
    }
}
