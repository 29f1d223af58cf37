//! Loads [`Settings`] from a command line, an environment and a file. Sources of higher precedence
//! are applied later and overwrite earlier values: file, then environment, then flags.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::setting::{Group, Kind, Setting};
use super::values::{file_text, nearest};
use super::{Flavor, Settings, SettingsError, help, policies, table};

/// The environment variables of a process that concern settings.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// Returns the variables of this process.
    pub fn of_process() -> Environment {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(variables: I) -> Self {
        let wanted = |name: &String| name.starts_with("LARDER_") || name.starts_with("MEMCACHED_");
        Environment { variables: variables.into_iter().filter(|(name, _)| wanted(name)).collect() }
    }
}

/// Prefixes of variables that container runtimes set for a service named `larder`. These variables
/// name no settings.
const FOREIGN: [&str; 2] = ["LARDER_SERVICE_", "LARDER_PORT_"];

/// Returns the command line of `larder serve`.
pub fn command() -> Command {
    let command = Command::new("serve")
        .about("Serve the memcached protocols")
        .disable_help_flag(true)
        .arg(
            Arg::new(SHORT_HELP)
                .short('h')
                .action(ArgAction::SetTrue)
                .help("Print the most used flags"),
        )
        .arg(Arg::new("help").long("help").action(ArgAction::HelpLong).help("Print all flags"))
        .after_help(help::AFTER_HELP);
    arguments(command)
}

/// Returns the command line for a start through a link named `memcached`. It also accepts Larder's
/// flags.
pub fn memcached_command() -> Command {
    let command = Command::new("memcached")
        .disable_help_flag(true)
        .disable_version_flag(true)
        .infer_long_args(true)
        .arg(switch("help", 'h'))
        .arg(switch("version", 'V'))
        .arg(switch("license", 'i'))
        // memcached ignores words that are not flags.
        .arg(Arg::new(LEFT_OVER).num_args(0..).hide(true));
    arguments(command)
}

/// The flag of `larder serve` that asks for [`short_help`](super::short_help).
pub const SHORT_HELP: &str = "short-help";

const LEFT_OVER: &str = "left-over";

fn switch(name: &'static str, short: char) -> Arg {
    Arg::new(name).long(name).short(short).action(ArgAction::SetTrue).hide(true)
}

fn arguments(command: Command) -> Command {
    let config = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .value_parser(clap::value_parser!(PathBuf))
        .help("TOML file with settings")
        .long_help(
            "TOML file with settings, named like the flags without --, and with rate limits\n\
             [env: LARDER_CONFIG]",
        )
        .help_heading(Group::Process.heading());
    let arguments = table::all().map(argument);
    command.args_override_self(true).args(arguments).arg(config)
}

fn argument(setting: &'static Setting) -> Arg {
    let mut argument = Arg::new(setting.key)
        .long(setting.key)
        .long_help(help::long_help(setting))
        .help_heading(setting.group.heading())
        .hide(setting.group == Group::Refused);
    if let Some(short) = setting.short {
        argument = argument.short(short);
    }
    if let Some(alias) = setting.alias {
        argument = argument.alias(alias);
    }
    match setting.kind {
        Kind::Value(name) => {
            argument.value_name(name).action(ArgAction::Set).allow_hyphen_values(true)
        }
        Kind::List(name) => argument.value_name(name).action(ArgAction::Append),
        Kind::Switch => argument.action(ArgAction::SetTrue),
        Kind::Count => argument.action(ArgAction::Count),
    }
}

/// Returns the value of a setting in the command line. Reads only the arguments before the index
/// `end`, which [`check_refused`] sets to that of a flag such as `-h`.
fn flag(setting: &Setting, matches: &ArgMatches, end: usize) -> Option<String> {
    if matches.value_source(setting.key) != Some(clap::parser::ValueSource::CommandLine)
        || matches.index_of(setting.key)? >= end
    {
        return None;
    }
    match setting.kind {
        Kind::Value(_) | Kind::List(_) => {
            let values = matches.get_many::<String>(setting.key)?;
            let in_front = values.zip(matches.indices_of(setting.key)?).filter(|(_, at)| *at < end);
            // memcached strips white space before a value.
            let values: Vec<_> = in_front.map(|(value, _)| value.trim_start()).collect();
            Some(values.join(","))
        }
        Kind::Switch => Some(matches.get_flag(setting.key).to_string()),
        Kind::Count => Some(matches.get_count(setting.key).to_string()),
    }
}

fn flag_name(setting: &Setting, flavor: Flavor) -> String {
    match (flavor, setting.short) {
        (Flavor::Memcached, Some(short)) => format!("-{short}"),
        _ => format!("--{}", setting.key),
    }
}

/// Loads the settings from all sources.
///
/// # Errors
/// Returns an error that says what to do, for the first value that cannot be used or the first file
/// that cannot be read. Also returns an error if values contradict each other.
pub fn from_matches(
    flavor: Flavor,
    matches: &ArgMatches,
    environment: &Environment,
) -> Result<Settings, SettingsError> {
    let mut settings = Settings::new(flavor);
    settings.config = match matches.get_one::<PathBuf>("config") {
        Some(path) => Some(path.clone()),
        None => environment.get("LARDER_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from),
    };
    if let Some(path) = settings.config.clone() {
        apply_file(&mut settings, &path)?;
    }
    apply_environment(&mut settings, environment)?;
    for setting in table::all() {
        if let Some(text) = flag(setting, matches, usize::MAX) {
            apply(&mut settings, setting, &text, || flag_name(setting, flavor))?;
        }
    }
    if flavor == Flavor::Memcached
        && let Some(words) = matches.get_many::<String>(LEFT_OVER)
    {
        let words: Vec<_> = words.map(String::as_str).collect();
        settings.notes.push(format!("no flags, ignored as memcached does: {}", words.join(" ")));
    }
    settings.port_file = environment.get("MEMCACHED_PORT_FILENAME").map(PathBuf::from);
    settings.check()?;
    Ok(settings)
}

/// Flags of memcached that only print something.
const PRINTING: [&str; 3] = ["help", "version", "license"];

/// Refuses unsupported flags that precede a flag that only prints something, such as `-h`. Test
/// harnesses put a flag in front of `-h` to find out if a build supports the flag: memcached
/// processes its flags in order and stops at the first unsupported one.
///
/// # Errors
/// Returns the first refused flag with the reason.
pub fn check_refused(matches: &ArgMatches) -> Result<(), SettingsError> {
    let printing = PRINTING.into_iter().filter(|name| matches.get_flag(name));
    let end = printing.filter_map(|name| matches.index_of(name)).min().unwrap_or(usize::MAX);
    let mut settings = Settings::new(Flavor::Memcached);
    let refused = |setting: &Setting| setting.group == Group::Refused || setting.key == "extended";
    for setting in table::all().filter(|setting| refused(setting)) {
        if let Some(text) = flag(setting, matches, end) {
            let place = || flag_name(setting, Flavor::Memcached);
            apply(&mut settings, setting, &text, place)?;
        }
    }
    Ok(())
}

fn apply(
    settings: &mut Settings,
    setting: &Setting,
    text: &str,
    place: impl FnOnce() -> String,
) -> Result<(), SettingsError> {
    (setting.set)(settings, text)
        .map_err(|reason| SettingsError::Value { place: place(), reason })?;
    settings.given.insert(setting.key);
    Ok(())
}

fn apply_environment(
    settings: &mut Settings,
    environment: &Environment,
) -> Result<(), SettingsError> {
    for setting in table::all() {
        let name = setting.environment();
        let Some(text) = environment.get(&name) else { continue };
        // For a service named `larder`, container runtimes set `LARDER_PORT` to a URL, which is not
        // meant as this setting.
        if setting.key == "port" && text.contains("://") {
            continue;
        }
        apply(settings, setting, text, || name)?;
    }
    let known = |name: &str| {
        name == "LARDER_CONFIG" || table::all().any(|setting| setting.environment() == name)
    };
    for name in environment.variables.keys() {
        let foreign = FOREIGN.iter().any(|prefix| name.starts_with(prefix));
        if name.starts_with("LARDER_") && !foreign && !known(name) {
            let key = name["LARDER_".len()..].to_ascii_lowercase().replace('_', "-");
            let hint = suggestion(&key).map(environment_hint).unwrap_or_default();
            settings.notes.push(format!("the variable {name} names no setting: ignored{hint}"));
        }
    }
    Ok(())
}

fn environment_hint(key: &'static str) -> String {
    format!("; did you mean LARDER_{}?", key.to_ascii_uppercase().replace('-', "_"))
}

fn apply_file(settings: &mut Settings, path: &Path) -> Result<(), SettingsError> {
    let unreadable = |reason: String| SettingsError::File { path: path.to_owned(), reason };
    let text = std::fs::read_to_string(path)
        .map_err(|error| unreadable(format!("cannot be read: {error}")))?;
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| unreadable(error.to_string()))?;
    for key in table.keys() {
        if key != policies::KEY && !table::all().any(|setting| setting.key == key) {
            return Err(SettingsError::UnknownKey {
                path: path.to_owned(),
                key: key.clone(),
                suggestion: suggestion(key),
            });
        }
    }
    for setting in table::all() {
        let Some(value) = table.get(setting.key) else { continue };
        let place = || format!("{}: {}", path.display(), setting.key);
        let text =
            file_text(value).map_err(|reason| SettingsError::Value { place: place(), reason })?;
        apply(settings, setting, &text, place)?;
    }
    if let Some(value) = table.get(policies::KEY) {
        settings.policies = policies::read(path, &text, value)?;
    }
    Ok(())
}

/// Returns the key of the setting whose name is most similar to `key`, if any is similar enough.
fn suggestion(key: &str) -> Option<&'static str> {
    let key = key.to_ascii_lowercase().replace('_', "-");
    let shown = table::all().filter(|setting| setting.group != Group::Refused);
    let named = shown.clone().find(|setting| setting.alias == Some(key.as_str()));
    if let Some(setting) = named {
        return Some(setting.key);
    }
    nearest(&key, shown.map(|setting| setting.key).chain([policies::KEY]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_gets_a_suggestion() {
        let cases = [
            ("memroy", Some("memory")),
            ("max_item_size", Some("max-item-size")),
            ("memory-limit", Some("memory")),
            ("max-connection", Some("max-connections")),
            ("adminn", Some("admin")),
            ("colour-of-the-sky", None),
        ];
        for (key, expected) in cases {
            assert_eq!(suggestion(key), expected, "{key}");
        }
    }
}
