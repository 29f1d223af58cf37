//! `larder ctl`: small operations on a running server, Larder or any other that speaks
//! memcached's text protocol. Meant for health checks of containers and for people.

use std::time::Duration;

use clap::{Arg, ArgMatches, Command};
use larder_client::{Address, Client, Error, Options};

/// The command line.
pub(crate) fn command() -> Command {
    Command::new("ctl")
        .about("Small operations on a running server")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .arg(
            Arg::new("server")
                .long("server")
                .value_name("ADDR")
                .global(true)
                .default_value("127.0.0.1:11211")
                .help("host:port, or the path of a Unix socket"),
        )
        .arg(
            Arg::new("timeout")
                .long("timeout")
                .value_name("SECONDS")
                .global(true)
                .default_value("5")
                .value_parser(clap::value_parser!(u64).range(1..=86_400))
                .help("How long to wait for an answer"),
        )
        .subcommand(Command::new("ping").about("Ask for the version; exit code 0 if it answers"))
        .subcommand(Command::new("stats").about("Print statistics").arg(
            Arg::new("group").value_name("GROUP").help("settings, items, slabs, conns, reset"),
        ))
        .subcommand(Command::new("flush").about("Forget every item (flush_all)"))
}

/// Runs it.
///
/// # Errors
/// When the server cannot be reached or refuses.
pub(crate) fn run(matches: &ArgMatches) -> Result<(), Error> {
    let Some((operation, matches)) = matches.subcommand() else { return Ok(()) };
    let text = |name: &str| matches.get_one::<String>(name).map(String::as_str);
    let address: Address = text("server").unwrap_or_default().parse()?;
    let timeout = matches.get_one::<u64>("timeout").copied().map(Duration::from_secs);
    let mut client = Client::connect_to(&address, Options { timeout })?;
    match operation {
        "ping" => println!("{address} answers, version {}", client.version()?),
        "stats" if text_of(matches, "group") == Some("reset") => {
            client.send_raw(b"stats reset\r\n")?;
            match client.read_line()? {
                b"RESET" => println!("reset"),
                line => return Err(unexpected(line)),
            }
        }
        "stats" => {
            for (name, value) in client.stats(text_of(matches, "group"))? {
                println!("{name:<32} {value}");
            }
        }
        _ => {
            client.flush_all(None)?;
            println!("flushed");
        }
    }
    Ok(())
}

/// The value of an argument that only one operation has.
fn text_of<'m>(matches: &'m ArgMatches, name: &str) -> Option<&'m str> {
    matches.get_one::<String>(name).map(String::as_str)
}

fn unexpected(line: &[u8]) -> Error {
    Error::Protocol(format!("the server says {:?}", String::from_utf8_lossy(line)))
}
