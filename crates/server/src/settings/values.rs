//! Parsing and formatting of setting values. The errors say what to do.

use std::path::PathBuf;
use std::time::Duration;

use larder_engine::WhenFull;

use super::units::{DefaultUnit, parse_duration, parse_size};
use super::{ListenAddress, LogFormat, LogLevel, Port, Protocol, Settings};
use crate::net::BackendChoice;

pub(super) const PROTOCOLS: &[(&str, Protocol)] =
    &[("auto", Protocol::Auto), ("ascii", Protocol::Ascii), ("binary", Protocol::Binary)];
pub(super) const BACKENDS: &[(&str, BackendChoice)] = &[
    ("auto", BackendChoice::Auto),
    ("uring", BackendChoice::Uring),
    ("epoll", BackendChoice::Epoll),
];
pub(super) const WHEN_FULL: &[(&str, WhenFull)] =
    &[("evict", WhenFull::Evict), ("refuse", WhenFull::Refuse)];
pub(super) const LOG_FORMATS: &[(&str, LogFormat)] =
    &[("logfmt", LogFormat::Logfmt), ("json", LogFormat::Json)];
pub(super) const LOG_LEVELS: &[(&str, LogLevel)] = &[
    ("error", LogLevel::Error),
    ("warn", LogLevel::Warn),
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
    ("trace", LogLevel::Trace),
];

pub(super) fn one_of<T: Copy>(text: &str, known: &[(&str, T)]) -> Result<T, String> {
    known.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
        format!("{text:?} is not one of {}", names.join(", "))
    })
}

pub(super) fn name_of<T: Copy + PartialEq>(value: T, known: &[(&str, T)]) -> String {
    known.iter().find(|(_, known)| *known == value).map_or("", |(name, _)| name).to_owned()
}

/// Returns the name of a log level in the settings.
pub(crate) fn log_level_name(level: LogLevel) -> String {
    name_of(level, LOG_LEVELS)
}

/// Returns the word for this value of `--when-full`, for example `refuse`.
pub(crate) fn when_full_name(when_full: WhenFull) -> String {
    name_of(when_full, WHEN_FULL)
}

/// Returns the known name that is most similar to `name`, if any is similar enough.
pub(super) fn nearest(
    name: &str,
    known: impl Iterator<Item = &'static str>,
) -> Option<&'static str> {
    known
        .map(|known| (strsim::levenshtein(name, known), known))
        .filter(|(distance, known)| *distance <= 1 + known.len() / 4)
        .min()
        .map(|(_, known)| known)
}

/// Converts a value of the configuration file to the text that the flag would have.
pub(super) fn file_text(value: &toml::Value) -> Result<String, String> {
    match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Float(number) => Ok(number.to_string()),
        toml::Value::Boolean(on) => Ok(on.to_string()),
        toml::Value::Array(values) => {
            let texts: Result<Vec<_>, _> = values.iter().map(file_text).collect();
            Ok(texts?.join(","))
        }
        toml::Value::Datetime(_) | toml::Value::Table(_) => {
            Err("it must be a string, a number, true, false or a list of these".to_owned())
        }
    }
}

pub(super) fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("{text:?} is not a whole number from 1")),
    }
}

pub(super) fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" | "" => Ok(false),
        _ => Err(format!("{text:?} is neither true nor false")),
    }
}

pub(super) fn show_switch(on: bool) -> String {
    if on { "true" } else { "false" }.to_owned()
}

pub(super) fn show_duration(duration: Duration) -> String {
    match (duration.as_secs(), duration.subsec_millis()) {
        (seconds, 0) => format!("{seconds}s"),
        _ => format!("{}ms", duration.as_millis()),
    }
}

/// Reads a duration longer than zero.
pub(super) fn positive_duration(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err(format!("{text:?} is no time: write for example 1s")),
        duration => Ok(duration),
    }
}

/// Parses a duration. Returns `None` for 0, which turns the setting off.
pub(super) fn optional_duration(text: &str) -> Result<Option<Duration>, String> {
    Ok(Some(parse_duration(text)?).filter(|duration| !duration.is_zero()))
}

/// Parses the number of worker threads.
pub(super) fn parse_threads(text: &str) -> Result<usize, String> {
    match positive(text)? {
        1025.. => Err("at most 1024 threads are allowed: use one per core".to_owned()),
        threads => Ok(threads),
    }
}

/// Parses the largest number of clients that wait to be accepted.
pub(super) fn parse_backlog(text: &str) -> Result<i32, String> {
    Ok(i32::try_from(positive(text)?).unwrap_or(i32::MAX))
}

/// Parses the number of `-v` flags.
pub(super) fn parse_verbosity(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number from 0"))
}

/// Parses a text. An empty text means that the setting is not given.
pub(super) fn optional(text: &str) -> Result<Option<String>, String> {
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

/// Parses host names.
pub(super) fn parse_hosts(text: &str) -> Result<Vec<String>, String> {
    Ok(split(text).map(str::to_ascii_lowercase).collect())
}

pub(super) fn path(text: &str) -> Result<Option<PathBuf>, String> {
    Ok((!text.is_empty()).then(|| PathBuf::from(text)))
}

pub(super) fn show_path(path: Option<&PathBuf>) -> String {
    path.map_or(String::new(), |path| path.display().to_string())
}

pub(super) fn split(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

pub(super) fn joined<T: ToString>(parts: &[T]) -> String {
    parts.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

pub(super) fn set_listen(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.listen = split(text).map(ListenAddress::parse).collect::<Result<_, _>>()?;
    match settings.listen.is_empty() {
        true => Err("the list is empty: write for example 127.0.0.1".to_owned()),
        false => Ok(()),
    }
}

pub(super) fn parse_port(text: &str) -> Result<Port, String> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(Port::Any),
        Ok(0) => Ok(Port::Off),
        Ok(port @ 1..=65535) => Ok(Port::Fixed(port as u16)),
        _ => Err(format!("{text:?} is not a port: write a number from 1 to 65535")),
    }
}

pub(super) fn show_port(port: Port) -> String {
    match port {
        Port::Off => "0".to_owned(),
        Port::Any => "-1".to_owned(),
        Port::Fixed(port) => port.to_string(),
    }
}

pub(super) fn parse_mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| format!("{text:?} is not a mode: write octal digits such as 700 or 0770"))
}

pub(super) fn set_admin(settings: &mut Settings, text: &str) -> Result<(), String> {
    use std::net::{IpAddr, SocketAddr};
    settings.admin = if text == "off" {
        None
    } else if let Ok(address) = text.parse::<SocketAddr>() {
        Some(address)
    } else if let Ok(host) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        Some(SocketAddr::new(host, 11212))
    } else if let Some(Ok(port)) = text.strip_prefix("localhost:").map(str::parse) {
        Some(SocketAddr::new(IpAddr::from([127, 0, 0, 1]), port))
    } else if let Ok(port) = text.trim_start_matches(':').parse::<u16>() {
        return Err(format!("{text:?} is a port without an address: write 127.0.0.1:{port}"));
    } else {
        return Err(format!("{text:?} is not an address: write 127.0.0.1:11212, or off"));
    };
    Ok(())
}

pub(super) fn parse_memory(text: &str) -> Result<u64, String> {
    parse_size(text, DefaultUnit::Mebibytes)
}

pub(super) fn parse_item_size(text: &str) -> Result<u64, String> {
    let size = parse_size(text, DefaultUnit::Bytes)?;
    if !(1024..=1 << 30).contains(&size) {
        return Err(format!("{text:?} is out of range: it must lie between 1k and 1GB"));
    }
    Ok(size)
}

/// Sets the prefix delimiter. As in memcached, this also turns `stats detail` on.
pub(super) fn set_prefix_delimiter(settings: &mut Settings, text: &str) -> Result<(), String> {
    match text.as_bytes() {
        [byte] if byte.is_ascii_graphic() => settings.prefix_delimiter = char::from(*byte),
        _ => return Err(format!("{text:?} is not one ASCII character: write for example :")),
    }
    settings.detail = true;
    Ok(())
}

pub(super) fn set_udp(settings: &mut Settings, text: &str) -> Result<(), String> {
    match (text.parse::<u16>(), settings.flavor) {
        (Ok(0), _) => Ok(()),
        (Err(_), _) => Err(format!("{text:?} is not a port")),
        (Ok(port), super::Flavor::Memcached) => {
            settings.notes.push(format!("there is no UDP: port {port} stays closed"));
            Ok(())
        }
        (Ok(_), super::Flavor::Larder) => {
            Err("there is no UDP: use TCP and write -U 0 or leave it out".to_owned())
        }
    }
}
