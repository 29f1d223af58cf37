//! `larder ctl`: small operations on a running server, for operators and for health checks of
//! containers. The server may be Larder or any other that speaks memcached's text protocol;
//! `limits` and `store` need Larder.

mod limits;

use larder_bench::say;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use larder_client::{Address, Client, Error, Options};
use larder_server::settings::parse_store_size;

/// Returns the command line of `ctl`.
pub(crate) fn command() -> Command {
    Command::new("ctl")
        .about("Query and control a running server")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .arg(
            Arg::new("server")
                .long("server")
                .value_name("ADDR")
                .global(true)
                .default_value("127.0.0.1:11211")
                .help("Server: HOST:PORT, or the path of its Unix socket"),
        )
        .arg(
            Arg::new("timeout")
                .long("timeout")
                .value_name("SECONDS")
                .global(true)
                .default_value("5")
                .value_parser(clap::value_parser!(u64).range(1..=86_400))
                .help("Longest wait for a reply; the default for store grow is 60"),
        )
        .subcommand(
            Command::new("ping").about("Print the server's version; exit code 0 if it replies"),
        )
        .subcommand(Command::new("stats").about("Print the server's statistics").arg(
            Arg::new("group").value_name("GROUP").help(
                "Only this group: settings, items, slabs, limits, conns, latency, buckets, \
                 durability or slow; reset sets counters to 0 instead",
            ),
        ))
        .subcommand(limits::command())
        .subcommand(Command::new("flush").about("Remove all items (flush_all)"))
        .subcommand(
            Command::new("store")
                .about("Grow or drain a device of the server's store while it serves clients")
                .subcommand_required(true)
                .arg_required_else_help(true)
                .subcommand(grow_command())
                .subcommand(drain_command()),
        )
}

fn grow_command() -> Command {
    Command::new("grow")
        .about("Make a device of the store larger")
        .long_about(
            "Make a device of the store larger while the server serves clients, and wait until the \
             new size is durable. The space of a file is allocated at once; a block device must \
             have the space already. A store never shrinks: a later start with a smaller size in \
             --store keeps the larger one. While the server runs, a store can grow until the \
             tables that describe it take a quarter of memory; a restart with --store PATH:SIZE \
             has no such limit.",
        )
        .arg(Arg::new("device").value_name("PATH|LANE").help(
            "Path of the device in --store, or number of its lane in `larder ctl stats`; may \
             be left out if there is only one device",
        ))
        .arg(
            Arg::new("size")
                .value_name("SIZE")
                .required(true)
                .value_parser(parse_store_size)
                .help("New size of the device, such as 512MB or 20GB; plain numbers are in MiB"),
        )
        .allow_missing_positional(true)
}

fn drain_command() -> Command {
    Command::new("drain")
        .about("Move all keys off a device, so that it can be removed from the store")
        .long_about(
            "Move all keys of a device to the other devices while the server serves clients, and \
             wait until the device is empty. Interrupting this command does not stop the drain; \
             --cancel does. Leave an empty device out of --store at the next start.",
        )
        .arg(
            Arg::new("device")
                .value_name("PATH")
                .required(true)
                .help("Path of the device in --store, without size and tier"),
        )
        .arg(
            Arg::new("cancel")
                .long("cancel")
                .action(ArgAction::SetTrue)
                .help("Cancel a drain: give the device its share of the keys again"),
        )
        .arg(
            Arg::new("no-wait")
                .long("no-wait")
                .action(ArgAction::SetTrue)
                .help("Do not wait; larder_lane_… in `larder ctl stats` shows the progress"),
        )
}

/// Runs the operation named on the command line.
///
/// # Errors
/// Returns an error if the server cannot be reached or refuses.
pub(crate) fn run(matches: &ArgMatches) -> Result<(), Error> {
    let Some((operation, matches)) = matches.subcommand() else { return Ok(()) };
    let (operation, matches) = matches.subcommand().unwrap_or((operation, matches));
    let text = |name: &str| matches.get_one::<String>(name).map(String::as_str);
    let address: Address = text("server").unwrap_or_default().parse()?;
    let timeout = matches.get_one::<u64>("timeout").copied().map(Duration::from_secs);
    let is_default = matches.value_source("timeout") == Some(ValueSource::DefaultValue);
    let timeout = if operation == "grow" && is_default { Some(GROWING) } else { timeout };
    let mut client = Client::connect_to(&address, Options { timeout })?;
    match operation {
        "ping" => say!("{address} answers, version {}", client.version()?),
        "stats" if text_of(matches, "group") == Some("reset") => {
            client.send_raw(b"stats reset\r\n")?;
            match client.replies().line()? {
                b"RESET" => say!("reset"),
                line => return Err(unexpected(line)),
            }
        }
        "stats" => {
            for (name, value) in client.stats(text_of(matches, "group"))? {
                say!("{name:<32} {value}");
            }
        }
        "drain" => drain(&mut client, matches)?,
        "grow" => grow(&mut client, matches)?,
        "limits" | "try" | "look" | "reset" => limits::run(&mut client, operation, matches)?,
        _ => {
            client.flush_all(None)?;
            say!("flushed");
        }
    }
    Ok(())
}

/// Default of `--timeout` for `grow`, which waits until the growth is durable.
const GROWING: Duration = Duration::from_secs(60);
/// Interval between two queries for the progress of a drain.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

fn drain(client: &mut Client, matches: &ArgMatches) -> Result<(), Error> {
    let device = text_of(matches, "device").unwrap_or_default();
    let cancel = matches.get_flag("cancel");
    let verb = if cancel { "keep" } else { "drain" };
    expect_ok(client, &format!("store {verb} {device}\r\n"))?;
    if cancel || matches.get_flag("no-wait") {
        say!("{device} {}", if cancel { "is kept" } else { "is being drained" });
        return Ok(());
    }
    let mut last = String::new();
    loop {
        let Some((state, partitions)) = lane_of(client, device)? else {
            return Err(Error::Server(format!("{device} is no device of the store")));
        };
        if state == "drained" {
            say!("{device} is drained: take it out of --store");
            return Ok(());
        }
        if state == "ok" {
            return Err(Error::Server(format!("{device} is not being drained any more")));
        }
        let progress = format!("{state}, {partitions} of 4096 shares of the keys are left");
        if progress != last {
            say!("{progress}");
            last = progress;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn grow(client: &mut Client, matches: &ArgMatches) -> Result<(), Error> {
    let device = text_of(matches, "device");
    let bytes = matches.get_one::<u64>("size").copied().unwrap_or_default();
    let name = device.map(|device| format!(" {device}")).unwrap_or_default();
    expect_ok(client, &format!("store grow {bytes}{name}\r\n"))?;
    say!("{} has {bytes} bytes now", device.unwrap_or("the store"));
    Ok(())
}

/// Sends a command to which the server replies with OK or with the reason for a refusal.
fn expect_ok(client: &mut Client, command: &str) -> Result<(), Error> {
    client.send_raw(command.as_bytes())?;
    match client.replies().line()? {
        b"OK" => Ok(()),
        line => {
            let line = String::from_utf8_lossy(line);
            let reason =
                line.trim_start_matches("SERVER_ERROR ").trim_start_matches("CLIENT_ERROR ");
            Err(Error::Server(reason.to_owned()))
        }
    }
}

/// Returns the state of a device's lane and the number of its partitions. Returns `None` if no lane
/// has this device.
fn lane_of(client: &mut Client, device: &str) -> Result<Option<(String, String)>, Error> {
    let stats = client.stats(None)?;
    let is_it = |(name, value): &&(String, String)| {
        name.starts_with("larder_lane_") && name.ends_with("_device") && value == device
    };
    let Some((name, _)) = stats.iter().find(is_it) else { return Ok(None) };
    let lane = name.trim_end_matches("_device");
    let value = |what: &str| {
        let name = format!("{lane}_{what}");
        let row = stats.iter().find(|(row, _)| *row == name);
        row.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    Ok(Some((value("state"), value("partitions"))))
}

/// Returns the value of a text argument, or `None` if it was not given.
fn text_of<'m>(matches: &'m ArgMatches, name: &str) -> Option<&'m str> {
    matches.get_one::<String>(name).map(String::as_str)
}

fn unexpected(line: &[u8]) -> Error {
    Error::Protocol(format!("the server says {:?}", String::from_utf8_lossy(line)))
}
