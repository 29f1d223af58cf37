//! `larder top`: rates, latencies, memory and state of servers in a terminal, side by side.
//!
//! Everything comes from `stats`, so any server that speaks memcached's text protocol can be shown.
//! Percentiles come from `stats buckets`, which only Larder has. One thread per server asks once
//! per interval, so a server that does not answer delays no other server.

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

/// The longest wait for a key press before the view takes new answers of the servers.
const FRAME: Duration = Duration::from_millis(100);

/// Returns the command line of `top`.
pub(crate) fn command() -> Command {
    Command::new("top")
        .about("Watch running servers in the terminal")
        .long_about(
            "Show the current activity of servers: requests by command, hit ratio, latency, \
             processor time, memory and health. It requests `stats` once per interval, so it \
             works with every server that speaks memcached's text protocol. A dash means that a \
             server does not report a figure. Only Larder reports latencies: p50, p99 and p99.9 \
             of the commands in the interval. Keys: q quits, space pauses.",
        )
        .after_help(
            "Examples:\n  \
             larder top\n  \
             larder top cache-1:11211 cache-2:11211 /run/memcached.sock\n  \
             larder top --once --json cache-1:11211 | jq .[0].reads_per_second",
        )
        .arg(
            Arg::new("servers")
                .value_name("ADDR")
                .num_args(0..)
                .default_value("127.0.0.1:11211")
                .help("Servers to show side by side: HOST:PORT, or the path of a Unix socket"),
        )
        .arg(
            Arg::new("interval")
                .long("interval")
                .short('i')
                .value_name("SECONDS")
                .default_value("1")
                .value_parser(clap::value_parser!(u64).range(1..=3600))
                .help("Interval between two requests for statistics; rates are averages over it"),
        )
        .arg(
            Arg::new("once")
                .long("once")
                .action(ArgAction::SetTrue)
                .help("Print the figures of one interval and exit; exit code 1 if a server fails"),
        )
        .arg(
            Arg::new("json")
                .long("json")
                .action(ArgAction::SetTrue)
                .requires("once")
                .help("With --once: print the figures as a JSON array with one object per server"),
        )
}

/// Shows the servers named on the command line until the user quits.
///
/// # Errors
/// Returns an error if an address is wrong, if the terminal is missing or fails, or, with `--once`,
/// if a server cannot be asked.
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
    // A server that sends its answer a little at a time must not delay the others for ever.
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

/// Returns the result for a server whose answers did not end in time.
fn late() -> Result<Figures, String> {
    Err("it did not end its answer in time".to_owned())
}

#[cfg(test)]
mod tests {
    use larder_server::condition::Level;
    use larder_server::server::Server;
    use larder_server::settings::{Flavor, ListenAddress, Port, Settings, StorePath};

    use super::*;
    use sample::tests::NAMED;

    /// For a row that the server does not have, `top` shows a dash, so a wrong row name would go
    /// unnoticed. This test compares the names with the rows of a real server.
    #[test]
    fn a_server_with_a_store_has_every_row_that_top_names() {
        let folder = std::env::temp_dir().join(format!("larder-top-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let mut settings = Settings::new(Flavor::Larder);
        settings.listen = vec![ListenAddress { host: "127.0.0.1".to_owned(), port: Some(0) }];
        settings.admin = None;
        settings.port = Port::Fixed(0);
        settings.store =
            vec![StorePath { path: folder.join("store"), size: Some(128 << 20), tier: None }];
        settings.memory = 16 << 20;
        let server = Server::start(settings).unwrap();
        let address: Address = server.addresses()[0].to_string().parse().unwrap();
        let pollers = Pollers::start(vec![address], Duration::from_millis(20));
        let end = Instant::now() + Duration::from_secs(30);
        let sample = || pollers.next_until(end).unwrap().1.unwrap();
        let (first, last) = (sample(), sample());
        NAMED.with_borrow_mut(|named| named.clear());
        let figures = Figures::between(&first, &last);
        assert_eq!(figures.condition.level, Level::Good, "{figures:?}");
        let named = NAMED.take();
        assert!(named.contains("curr_items") && named.contains("larder_unsynced_ms"), "{named:?}");
        let missing: Vec<_> = named.iter().filter(|row| last.text(row).is_none()).collect();
        assert!(missing.is_empty(), "the server has no {missing:?}");
        // `stats` itself is a command, so there are latencies.
        let figures = serde_json::to_value(&figures).unwrap();
        let unknown = figures.as_object().unwrap().iter().filter(|(_, value)| value.is_null());
        let unknown: Vec<_> = unknown.map(|(name, _)| name.as_str()).collect();
        assert_eq!(unknown, ["hit_ratio"], "there were no reads");
        drop((pollers, server));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
