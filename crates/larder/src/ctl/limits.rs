//! `larder ctl limits`: shows the policies of rate limits, and tries, looks at and resets single
//! limiters.

use std::collections::BTreeMap;

use clap::{Arg, ArgMatches, Command};
use larder_bench::say;
use larder_client::{Client, Code, Error, Reply};

use super::text_of;

/// The largest length of a key, in bytes.
const KEY_MAX: usize = 250;

/// Returns the command line of `ctl limits`.
pub(super) fn command() -> Command {
    let policy = Arg::new("policy").value_name("POLICY").required(true);
    let policy = policy.help("Name of the policy in the settings file");
    let key = Arg::new("key").value_name("KEY").required(true);
    let key = key.help("Whole key, with the policy's prefix if it has one");
    Command::new("limits")
        .about("List the rate limits (policies); try, show or reset the limit of one key")
        .long_about(
            "Without a command, list the policies of the settings file: named rate limits. The \
             columns count the requests that were allowed (within), allowed with more than 80 % of \
             the limit used (near), refused (over), and allowed over the limit because the policy \
             is not enforced (shadow).",
        )
        .subcommand(
            Command::new("try")
                .about("Take units from a key's limit, as a client would, and print the decision")
                .args([&policy, &key])
                .arg(
                    Arg::new("cost")
                        .long("cost")
                        .value_name("N")
                        .default_value("1")
                        .value_parser(clap::value_parser!(u64).range(1..))
                        .help("Number of units to take"),
                ),
        )
        .subcommand(
            Command::new("look")
                .about("Show how many units a key has left, and take none")
                .args([&policy, &key]),
        )
        .subcommand(
            Command::new("reset")
                .about("Forget the used units of a key, by deleting its item")
                .arg(&key),
        )
}

/// Runs an operation of `ctl limits`. The operation `limits` itself lists the policies.
pub(super) fn run(client: &mut Client, operation: &str, matches: &ArgMatches) -> Result<(), Error> {
    let key = || text_of(matches, "key").unwrap_or_default();
    let policy = || text_of(matches, "policy").unwrap_or_default();
    match operation {
        "try" => {
            let cost = matches.get_one::<u64>("cost").copied().unwrap_or(1);
            say!("{}", decide(client, policy(), key(), cost)?);
        }
        "look" => say!("{}", decide(client, policy(), key(), 0)?),
        "reset" => match client.delete(key().as_bytes())? {
            true => say!("{} is reset", key()),
            false => say!("{} has no used units", key()),
        },
        _ => list(&policies(client)?),
    }
    Ok(())
}

/// The fields of one policy in `stats limits`: name to value.
#[derive(Default)]
struct Policy(BTreeMap<String, String>);

impl Policy {
    fn value(&self, what: &str) -> &str {
        self.0.get(what).map_or("", String::as_str)
    }

    /// Returns the limit in a few words: `5 per 60s, fixed`.
    fn limit(&self) -> String {
        let mut text = self.value("budget").to_owned();
        match self.value("window") {
            "0s" => text += " for ever",
            window => text += &format!(" per {window}"),
        }
        text += &format!(", {}", self.value("algorithm"));
        if let Some(burst) = self.0.get("burst") {
            text += &format!(", burst {burst}");
        }
        if let Some(durability) = self.0.get("durability") {
            text += &format!(", {durability}");
        }
        if self.value("enforced") == "no" {
            text += ", shadow";
        }
        if let (Some(domain), Some(entries)) = (self.0.get("domain"), self.0.get("descriptor")) {
            text += &format!(", descriptor {domain}: {entries}");
        }
        text
    }
}

/// Returns the policies of the server by name.
fn policies(client: &mut Client) -> Result<BTreeMap<String, Policy>, Error> {
    let mut policies = BTreeMap::<String, Policy>::new();
    for (row, value) in client.stats(Some("limits"))? {
        let row = row.strip_prefix("limit:").and_then(|row| row.rsplit_once(':'));
        if let Some((name, what)) = row {
            policies.entry(name.to_owned()).or_default().0.insert(what.to_owned(), value);
        }
    }
    Ok(policies)
}

fn list(policies: &BTreeMap<String, Policy>) {
    if policies.is_empty() {
        return say!("there are no policies: write [[limit]] into the file of --config");
    }
    let results = ["within", "near", "over", "shadow"];
    let row = |texts: [&str; 3], value: &dyn Fn(&'static str) -> String| -> Vec<String> {
        texts.map(str::to_owned).into_iter().chain(results.map(value)).collect()
    };
    let mut lines = vec![row(["policy", "prefix", "limit"], &str::to_owned)];
    for (name, policy) in policies {
        let texts = [name, policy.value("prefix"), &policy.limit()];
        lines.push(row(texts, &|result| policy.value(result).to_owned()));
    }
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..7).filter_map(width).collect();
    for line in &lines {
        let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column < 3 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        say!("{}", cells.collect::<Vec<_>>().join("  "));
    }
}

/// Requests `cost` units from a key's limiter by the policy `name`, and describes the decision.
/// With a cost of 0, only looks at the limiter.
fn decide(client: &mut Client, name: &str, key: &str, cost: u64) -> Result<String, Error> {
    let policies = policies(client)?;
    let Some(policy) = policies.get(name) else {
        return Err(Error::Usage(format!(
            "there is no policy {name:?}: larder ctl limits lists them"
        )));
    };
    let prefix = policy.value("prefix");
    if !key.starts_with(prefix) {
        return Err(Error::Usage(format!(
            "{key:?} does not begin with the prefix of {name}: write {prefix}{key}"
        )));
    }
    let unfit = |c: char| c.is_whitespace() || c.is_control();
    if key.is_empty() || key.len() > KEY_MAX || key.contains(unfit) {
        return Err(Error::Usage(format!(
            "{key:?} is no key: use 1 to {KEY_MAX} bytes, no spaces"
        )));
    }
    client.send_raw(format!("ma {key} Q{name} D{cost} r t w\r\n").as_bytes())?;
    let reader = client.replies();
    let (allowed, flags) = match reader.reply()? {
        (Reply::Meta(Code::Done, flags), _) => (true, flags),
        (Reply::Meta(Code::NotStored, flags), _) => (false, flags),
        _ => {
            let line = String::from_utf8_lossy(reader.last_line());
            let reason = line.trim_start_matches("CLIENT_ERROR ");
            return Err(Error::Server(reason.trim_start_matches("SERVER_ERROR ").to_owned()));
        }
    };
    let mut parts = vec![format!("{} left", flags.number(b'r').unwrap_or_default())];
    match flags.number(b'w') {
        _ if allowed => {}
        Some(wait) => parts.push(format!("passes in {}.{:03} s", wait / 1000, wait % 1000)),
        None => parts.push("never passes".to_owned()),
    }
    parts.push(match flags.number(b't') {
        Some(0) => "as new".to_owned(),
        Some(seconds) => format!("as new in {seconds} s"),
        None => "until it is reset".to_owned(),
    });
    let decision = match (cost, allowed) {
        (0, _) => "",
        (_, true) => "allowed: ",
        (_, false) => "refused: ",
    };
    Ok(format!("{decision}{}", parts.join(", ")))
}
