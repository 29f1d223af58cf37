//! `larder top`: rates, latencies, memory and state of servers in a terminal, side by side.
//!
//! Everything comes from `stats`, so any server that speaks memcached's text protocol can be shown.
//! Percentiles come from `stats buckets`, which only Larder has. A thread per server asks once per
//! interval. A server that does not answer delays no other.

mod figures;
mod poller;
mod sample;
mod table;
mod view;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::{Arg, ArgAction, ArgMatches, Command};
use larder_bench::say;
use larder_client::{Address, Error};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::{DefaultTerminal, TerminalOptions};

use figures::Figures;
use poller::{PATIENCE, Pollers};
use sample::Sample;
use view::Panel;

/// The longest wait for a key before the next look at the pollers' answers.
const FRAME: Duration = Duration::from_millis(100);

/// Returns the command line of `top`.
pub(crate) fn command() -> Command {
    Command::new("top")
        .about("Watch running servers in the terminal")
        .long_about(
            "Shows what servers do now: requests by verb, hit ratio, latency, processor time, memory, and \
             whether all is well. It asks for `stats` once per interval, so it works with Larder and \
             with any other server that speaks memcached's text protocol; a figure that a server does not \
             have is shown as a dash. Only Larder tells latencies: p50, p99 and p99.9 of the commands \
             of the interval. Keys: q ends, space pauses.",
        )
        .after_help(
            "larder top\n\
             larder top cache-1:11211 cache-2:11211 /run/memcached.sock\n\
             larder top --once --json cache-1:11211 | jq .[0].reads_per_second",
        )
        .arg(
            Arg::new("servers")
                .value_name("ADDR")
                .num_args(0..)
                .default_value("127.0.0.1:11211")
                .help("host:port, or the path of a Unix socket; several are shown side by side"),
        )
        .arg(
            Arg::new("interval")
                .long("interval")
                .short('i')
                .value_name("SECONDS")
                .default_value("1")
                .value_parser(clap::value_parser!(u64).range(1..=3600))
                .help("Time between two questions; rates are averages over it"),
        )
        .arg(
            Arg::new("once")
                .long("once")
                .action(ArgAction::SetTrue)
                .help("Print the figures of one interval and end; exit code 1 if a server fails"),
        )
        .arg(
            Arg::new("json")
                .long("json")
                .action(ArgAction::SetTrue)
                .requires("once")
                .help("Print them as JSON: an array with an object for each server"),
        )
}

/// Watches the servers named on the command line until the user ends it.
///
/// # Errors
/// Returns an error if an address is wrong, if there is no terminal, or, with `--once`, if a server
/// cannot be asked.
pub(crate) fn run(matches: &ArgMatches) -> Result<(), Error> {
    let names = matches.get_many::<String>("servers").into_iter().flatten();
    let addresses = names.map(|name| name.parse()).collect::<Result<Vec<Address>, Error>>()?;
    let seconds = matches.get_one::<u64>("interval").copied().unwrap_or(1);
    let interval = Duration::from_secs(seconds);
    if matches.get_flag("once") {
        return once(addresses, interval, matches.get_flag("json"));
    }
    if !std::io::stdout().is_terminal() {
        return Err(Error::Usage(
            "the standard output is no terminal: use --once, or --once --json".to_owned(),
        ));
    }
    let failed = |source| Error::Io { doing: "use the terminal".into(), source };
    let mut terminal =
        ratatui::try_init_with_options(TerminalOptions::default()).map_err(failed)?;
    let ended = watch(&mut terminal, addresses, interval);
    ratatui::restore();
    ended.map_err(failed)
}

fn watch(
    terminal: &mut DefaultTerminal,
    addresses: Vec<Address>,
    interval: Duration,
) -> std::io::Result<()> {
    let mut panels: Vec<Panel> = addresses.iter().map(Panel::new).collect();
    let pollers = Pollers::start(addresses, interval);
    let mut paused = false;
    loop {
        for (number, answer) in pollers.answers() {
            if !paused {
                panels[number].take(answer);
            }
        }
        terminal.draw(|frame| view::draw(frame, &panels, paused))?;
        let until = Instant::now() + FRAME;
        while event::poll(until.saturating_duration_since(Instant::now()))? {
            let Event::Key(key) = event::read()? else { break };
            let control = key.modifiers.contains(KeyModifiers::CONTROL);
            match key.code {
                _ if key.kind == KeyEventKind::Release => {}
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Char('c') if control => return Ok(()),
                KeyCode::Char(' ') => paused = !paused,
                _ => {}
            }
        }
    }
}

/// Prints the figures of one interval.
fn once(addresses: Vec<Address>, interval: Duration, json: bool) -> Result<(), Error> {
    let count = addresses.len();
    let names: Vec<String> = addresses.iter().map(Address::to_string).collect();
    let pollers = Pollers::start(addresses, interval);
    let mut before: Vec<Option<Sample>> = vec![None; count];
    let mut results: Vec<Option<Result<Figures, String>>> = vec![None; count];
    // A server that answers a little at a time must not hold up the others for ever.
    let end = Instant::now() + interval + PATIENCE * 4;
    while results.iter().any(Option::is_none) {
        let Some((number, answer)) = pollers.next_until(end) else { break };
        if results[number].is_some() {
            continue;
        }
        match (answer, before[number].take()) {
            (Err(why), _) => results[number] = Some(Err(why)),
            (Ok(sample), None) => before[number] = Some(sample),
            (Ok(sample), Some(first)) => {
                results[number] = Some(Ok(Figures::between(&first, &sample)));
            }
        }
    }
    let results: Vec<(String, Result<Figures, String>)> = names
        .into_iter()
        .zip(results.into_iter().map(|result| result.unwrap_or_else(late)))
        .collect();
    if json {
        say!("{}", table::json(&results)?);
    } else {
        table::text(&results).lines().for_each(|line| say!("{line}"));
    }
    let failed = results.iter().find_map(|(name, result)| Some((name, result.as_ref().err()?)));
    match failed {
        Some((name, why)) => Err(Error::Server(format!("{name}: {why}"))),
        None => Ok(()),
    }
}

/// The result of a server whose answers did not end in time.
fn late() -> Result<Figures, String> {
    Err("it did not end its answer in time".to_owned())
}
