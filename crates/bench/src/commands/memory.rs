//! `larder bench memory`: resident bytes per item.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::load::fill;
use super::output::{JsonFile, Table, megabytes};
use crate::generator::Load;
use crate::launch::{Allowance, Program};
use crate::machine::Machine;
use crate::workload::{Lengths, Shape};
use crate::{Result, complain, say};

/// The servers, the number of items and the memory limits.
#[derive(Clone, Debug, Args)]
pub struct MemoryArguments {
    /// Another server to measure: [NAME=]PATH and its options, as one quoted argument; repeatable
    #[arg(long = "peer", value_name = "PATH")]
    peers: Vec<String>,
    /// Larder executable to measure, instead of this one
    #[arg(long, value_name = "PATH")]
    larder: Option<PathBuf>,
    /// Measure only the other servers
    #[arg(long)]
    without_larder: bool,
    /// Number of items in the two cases with values of about 50 bytes
    #[arg(long, default_value_t = 5_000_000)]
    items: u64,
    /// Memory limit in MiB in the two cases with values of about 50 bytes; all items must fit in it
    #[arg(long, default_value_t = 2048)]
    memory: u64,
    /// Memory limit in MiB in the case with 1000-byte values, which stores more items than fit
    #[arg(long, default_value_t = 512)]
    full_memory: u64,
    #[command(flatten)]
    json: JsonFile,
}

struct MemoryCase {
    name: &'static str,
    key_lengths: Lengths,
    value_lengths: Lengths,
    /// True if more items are stored than fit, so that the server evicts some. The figures are then
    /// per item that the server still holds.
    overfill: bool,
}

const CASES: [MemoryCase; 3] = [
    MemoryCase {
        name: "keys of 15, values of 50",
        key_lengths: Lengths { min: 15, max: 15 },
        value_lengths: Lengths { min: 50, max: 50 },
        overfill: false,
    },
    MemoryCase {
        name: "keys of 10-20, values of 40-60",
        key_lengths: Lengths { min: 10, max: 20 },
        value_lengths: Lengths { min: 40, max: 60 },
        overfill: false,
    },
    MemoryCase {
        name: "keys of 12, values of 1000, full",
        key_lengths: Lengths { min: 12, max: 12 },
        value_lengths: Lengths { min: 1000, max: 1000 },
        overfill: true,
    },
];

#[derive(Debug, Serialize)]
struct MemoryRow {
    case: &'static str,
    server: String,
    version: String,
    memory_limit_mib: u64,
    /// Number of items stored.
    stored: u64,
    /// Number of items that the server held at the end, after eviction.
    held: u64,
    rss_empty: u64,
    rss_filled: u64,
    /// Resident bytes per held item. They include the resident bytes of the empty server.
    bytes_per_item: f64,
    /// Growth of resident memory since the server was empty, per held item, in bytes.
    added_bytes_per_item: f64,
    /// Held items per gibibyte of resident memory. By this figure, servers can be compared at equal
    /// memory.
    items_per_gib: f64,
}

impl MemoryArguments {
    pub(super) fn run(self) -> Result<()> {
        let mut programs = Vec::new();
        if !self.without_larder {
            programs.push(Program::larder(self.larder.as_deref(), "auto")?);
        }
        for peer in &self.peers {
            programs.push(Program::peer(peer)?);
        }
        let mut rows = Vec::new();
        for case in &CASES {
            for program in &programs {
                complain!("{}: {}", case.name, program.name);
                rows.push(self.measure(case, program)?);
            }
        }
        say!("{}\n", Machine::here().line());
        let table = Table::of(
            2,
            &rows,
            &[
                ("items", &|row: &MemoryRow| row.case.to_owned()),
                ("server", &|row| row.server.clone()),
                ("held", &|row| format!("{} of {}", row.held, row.stored)),
                ("RSS empty", &|row| megabytes(row.rss_empty)),
                ("RSS filled", &|row| megabytes(row.rss_filled)),
                ("bytes/item", &|row| format!("{:.1}", row.bytes_per_item)),
                ("added bytes/item", &|row| format!("{:.1}", row.added_bytes_per_item)),
                ("items per GiB of RSS", &|row| format!("{:.0}", row.items_per_gib)),
            ],
        );
        self.json.report(table, &rows)
    }

    fn measure(&self, case: &MemoryCase, program: &Program) -> Result<MemoryRow> {
        let memory = if case.overfill { self.full_memory } else { self.memory };
        let items = match case.overfill {
            // An item has 12 bytes of key and 1000 bytes of value. All keys and values together are
            // 1.5 times as long as the memory limit.
            true => (memory << 20) / 1012 * 3 / 2,
            false => self.items,
        };
        let server = program.start(Allowance { memory, threads: 1, cpu: None })?;
        let rss_empty = server.probe().sample()?.rss;
        let shape = Shape {
            keys: items,
            prefix: "k".into(),
            key_lengths: case.key_lengths,
            value_lengths: case.value_lengths,
            ..Shape::default()
        };
        let load =
            Load { connections: 8, warm_up: Duration::ZERO, ..Load::new(server.address.clone()) };
        fill(&load, &shape, false)?;
        let held = server.stat("curr_items")?;
        let rss_filled = server.probe().sample()?.rss;
        let per_item = |bytes: u64| bytes as f64 / held.max(1) as f64;
        Ok(MemoryRow {
            case: case.name,
            server: program.name.clone(),
            version: server.version.clone(),
            memory_limit_mib: memory,
            stored: items,
            held,
            rss_empty,
            rss_filled,
            bytes_per_item: per_item(rss_filled),
            added_bytes_per_item: per_item(rss_filled.saturating_sub(rss_empty)),
            items_per_gib: held as f64 * f64::from(1 << 30) / rss_filled as f64,
        })
    }
}
