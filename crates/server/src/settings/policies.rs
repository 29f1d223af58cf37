//! Reads the tables `[[limit]]` of the configuration file. Each of these defines a policy of rate
//! limits. Policies are not in the table of settings, because a policy does not fit into a flag or
//! an environment variable.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::Path;
use std::time::Duration;

use larder_engine::Durability;
use larder_engine::limit::{Algorithm, Limit, Nanos};
use toml::de::{DeTable, DeValue};

use super::units::parse_duration;
use super::values::{file_text, name_of, nearest, one_of, parse_switch, show_duration};
use super::{Settings, SettingsError, durability_name};
use crate::policies::{DescriptorPattern, EntryPattern, Policy};

/// The name of the policies' tables in the configuration file.
pub(super) const KEY: &str = "limit";

/// The keys that a policy's table in the configuration file may have.
const KEYS: [&str; 10] = [
    "name",
    "prefix",
    "window",
    "budget",
    "algorithm",
    "burst",
    "shadow",
    "durability",
    "domain",
    "descriptor",
];

const ALGORITHMS: &[(&str, Algorithm)] =
    &[("fixed", Algorithm::Fixed), ("sliding", Algorithm::Sliding), ("gcra", Algorithm::Gcra)];

const DURABILITIES: &[(&str, Durability)] =
    &[("async", Durability::Async), ("sync", Durability::Sync)];

/// The largest number of policies.
const POLICIES_MAX: usize = 1024;
/// The largest length of a policy's name, in bytes.
const NAME_MAX: usize = 64;
/// The largest length of a policy's prefix, in bytes: the largest length of an item's key.
const PREFIX_MAX: usize = 250;

/// The largest number of entries of a descriptor.
const ENTRIES_MAX: usize = 16;
/// The largest length of a domain, and of a key or value of a descriptor, in bytes.
const TEXT_MAX: usize = 250;

/// Returns an algorithm's name in the settings.
pub(crate) fn algorithm_name(algorithm: Algorithm) -> String {
    name_of(algorithm, ALGORITHMS)
}

/// Returns a window in the form of the settings. A window that never ends is `0s`.
pub(crate) fn show_window(window: Nanos) -> String {
    show_duration(Duration::from_nanos(window))
}

/// What is wrong with a policy.
struct Fault {
    /// The key of the policy's table that is unknown or has a wrong value. `None` if a key is
    /// missing.
    key: Option<String>,
    reason: String,
}

impl Fault {
    fn of(key: &str, reason: impl Into<String>) -> Fault {
        Fault { key: Some(key.to_owned()), reason: reason.into() }
    }
}

/// Reads the policies from `value`, which is the value of the key `limit` in the file. `path` and
/// `text` are the file's path and its content.
pub(super) fn read(
    path: &Path,
    text: &str,
    value: &toml::Value,
) -> Result<Vec<Policy>, SettingsError> {
    let error = |place: String, reason: String| {
        Err(SettingsError::Value { place: format!("{}: {place}", path.display()), reason })
    };
    let tables = value.as_array().and_then(|tables| {
        tables.iter().map(toml::Value::as_table).collect::<Option<Vec<&toml::Table>>>()
    });
    let Some(tables) = tables else {
        return error(KEY.to_owned(), "write [[limit]] above the keys of each policy".to_owned());
    };
    if tables.len() > POLICIES_MAX {
        return error(KEY.to_owned(), format!("there are at most {POLICIES_MAX} policies"));
    }
    let (mut names, mut prefixes) = (BTreeSet::new(), BTreeSet::new());
    let mut descriptors = BTreeSet::new();
    let mut unique = |policy: Policy| {
        if !names.insert(policy.name.clone()) {
            return Err(Fault::of("name", "an earlier policy has the same name"));
        }
        if let Some(pattern) = &policy.descriptor
            && !descriptors.insert(pattern.clone())
        {
            return Err(Fault::of("descriptor", "an earlier policy has the same descriptor"));
        }
        match &policy.prefix {
            Some(prefix) if !prefixes.insert(prefix.clone()) => {
                Err(Fault::of("prefix", "an earlier policy has the same prefix"))
            }
            _ => Ok(policy),
        }
    };
    let mut policies = Vec::with_capacity(tables.len());
    let fault_at = |index: usize, table: &toml::Table, fault: Fault| {
        error(place(text, index, table, fault.key), fault.reason)
    };
    for (index, table) in tables.iter().enumerate() {
        match policy(table).and_then(&mut unique) {
            Ok(policy) => policies.push(policy),
            Err(fault) => return fault_at(index, table, fault),
        }
    }
    let prefixes = prefixes_of(&policies);
    for ((index, table), policy) in tables.into_iter().enumerate().zip(&policies) {
        if let Err(fault) = keep_apart(policy, &prefixes) {
            return fault_at(index, table, fault);
        }
    }
    Ok(policies)
}

/// Returns the prefixes of policies, with the policies' names.
fn prefixes_of(policies: &[Policy]) -> BTreeMap<&str, &str> {
    policies.iter().filter_map(|policy| Some((policy.prefix.as_deref()?, &*policy.name))).collect()
}

/// Checks that no descriptor that matches `policy` has an item key that begins with the longer
/// prefix of another policy. With such a key, clients of a proxy such as Envoy could use up limits
/// of the other policy. A descriptor's item key is the prefix of `policy`, followed by the values
/// that the descriptor pattern of `policy` does not fix. A `/` separates these values. In the
/// values, `/` is percent-encoded.
fn keep_apart(policy: &Policy, prefixes: &BTreeMap<&str, &str>) -> Result<(), Fault> {
    let (Some(pattern), Some(own)) = (&policy.descriptor, policy.prefix.as_deref()) else {
        return Ok(());
    };
    let open = pattern.entries.iter().filter(|entry| entry.value.is_none()).count();
    let after = prefixes.range::<str, _>((Bound::Excluded(own), Bound::Unbounded));
    let longer = after.map_while(|(prefix, name)| Some((prefix.strip_prefix(own)?, name)));
    for (rest, name) in longer {
        if rest.matches('/').count() < open {
            return Err(Fault::of(
                "prefix",
                format!(
                    "keys of its descriptors could begin with \"{own}{rest}\", the prefix of \
                     {name:?}: give it a prefix that no other one begins with"
                ),
            ));
        }
    }
    Ok(())
}

/// Returns the place of a fault in the file, in the form `line 4: limit "logins": budget`.
fn place(text: &str, index: usize, table: &toml::Table, key: Option<String>) -> String {
    let mut place = match line(text, index, key.as_deref()) {
        Some(line) => format!("line {line}: {KEY}"),
        None => KEY.to_owned(),
    };
    if let Some(name) = table.get("name").and_then(toml::Value::as_str) {
        place += &format!(" {name:?}");
    }
    if let Some(key) = key.filter(|key| KEYS.contains(&key.as_str())) {
        place += &format!(": {key}");
    }
    place
}

/// Returns the line of a policy in the file, or of one of its keys.
fn line(text: &str, index: usize, key: Option<&str>) -> Option<usize> {
    let file = DeTable::parse(text).ok()?;
    let DeValue::Array(tables) = file.get_ref().get(KEY)?.get_ref() else { return None };
    let table = tables.get(index)?;
    let DeValue::Table(keys) = table.get_ref() else { return None };
    let known = key.and_then(|key| keys.get_key_value(key));
    let start = known.map_or(table.span().start, |(key, _)| key.span().start);
    Some(1 + text.get(..start)?.matches('\n').count())
}

fn policy(table: &toml::Table) -> Result<Policy, Fault> {
    if let Some(key) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
        let hint = match nearest(key, KEYS.into_iter()) {
            Some(known) => format!("did you mean {known:?}?"),
            None => format!("the keys are {}", KEYS.join(", ")),
        };
        return Err(Fault::of(key, format!("there is no key {key:?}: {hint}")));
    }
    let keys = Keys(table);
    let name = keys.required("name", "\"logins\"", parse_name)?;
    let budget = keys.required("budget", "100", parse_units)?;
    let algorithm = keys.get("algorithm", |text| one_of(text, ALGORITHMS))?;
    let algorithm = algorithm.unwrap_or(Algorithm::Fixed);
    let window = keys.get("window", parse_window)?.unwrap_or(0);
    let burst = keys.get("burst", parse_units)?;
    if burst.is_some() && algorithm != Algorithm::Gcra {
        return Err(Fault::of("burst", "only the algorithm gcra has a burst: leave it out"));
    }
    let limit = match algorithm {
        Algorithm::Fixed => Some(Limit::fixed(budget, window)),
        Algorithm::Sliding => Limit::sliding(budget, window),
        Algorithm::Gcra => Limit::gcra(budget, window, burst.unwrap_or(budget)),
    };
    let limit = limit.ok_or_else(|| {
        let name = algorithm_name(algorithm);
        Fault::of("window", format!("{name} needs a window: write for example window = \"60s\""))
    })?;
    let prefix = keys.get("prefix", parse_prefix)?;
    let descriptor = descriptor(&keys)?;
    if descriptor.is_some() && prefix.is_none() {
        let reason = "clients of the proxy could choose any key: give a prefix, such as \"login/\"";
        return Err(Fault::of("descriptor", reason));
    }
    Ok(Policy {
        prefix,
        descriptor,
        shadow: keys.get("shadow", parse_switch)?.unwrap_or(false),
        durability: keys.get("durability", |text| one_of(text, DURABILITIES))?,
        ..Policy::new(name, limit)
    })
}

/// Reads `domain` and `descriptor`. Each of these keys needs the other.
fn descriptor(keys: &Keys<'_>) -> Result<Option<DescriptorPattern>, Fault> {
    let domain = keys.get("domain", parse_text)?;
    let entries = keys.list("descriptor", parse_entry)?;
    match (domain, entries) {
        (None, None) => Ok(None),
        (Some(_), None) => {
            let reason = "a domain needs a descriptor: write for example \
                          descriptor = [\"remote_address\"]";
            Err(Fault::of("domain", reason))
        }
        (None, Some(_)) => {
            let reason = "a descriptor needs the domain of the proxy's requests: write for \
                          example domain = \"edge\"";
            Err(Fault::of("descriptor", reason))
        }
        (Some(_), Some(entries)) if entries.is_empty() || entries.len() > ENTRIES_MAX => {
            let reason = format!("give 1 to {ENTRIES_MAX} entries");
            Err(Fault::of("descriptor", reason))
        }
        (Some(domain), Some(entries)) => Ok(Some(DescriptorPattern { domain, entries })),
    }
}

/// The keys and values of one policy's table.
struct Keys<'t>(&'t toml::Table);

impl Keys<'_> {
    fn get<T>(
        &self,
        key: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Fault> {
        let Some(value) = self.0.get(key) else { return Ok(None) };
        let text = match value {
            toml::Value::Array(_) => Err("it takes one value, not a list".to_owned()),
            value => file_text(value),
        };
        let parsed = text.and_then(|text| parse(&text));
        parsed.map(Some).map_err(|reason| Fault::of(key, reason))
    }

    fn list<T>(
        &self,
        key: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<Vec<T>>, Fault> {
        let Some(value) = self.0.get(key) else { return Ok(None) };
        let toml::Value::Array(values) = value else {
            return Err(Fault::of(key, "it takes a list in brackets"));
        };
        let parsed = values.iter().map(|value| file_text(value).and_then(|text| parse(&text)));
        parsed.collect::<Result<_, _>>().map(Some).map_err(|reason| Fault::of(key, reason))
    }

    fn required<T>(
        &self,
        key: &str,
        example: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, Fault> {
        let reason = || format!("it has no {key}: write for example {key} = {example}");
        self.get(key, parse)?.ok_or_else(|| Fault { key: None, reason: reason() })
    }
}

fn parse_name(text: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
    if text.is_empty() || text.len() > NAME_MAX || !text.bytes().all(allowed) {
        return Err(format!(
            "{text:?} is not a name: use 1 to {NAME_MAX} letters, digits and - _ . : /"
        ));
    }
    Ok(text.to_owned())
}

fn parse_prefix(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("it is empty: leave it out if requests name the policy".to_owned());
    }
    if text.len() > PREFIX_MAX || text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(format!(
            "{text:?} begins no key: a key has at most {PREFIX_MAX} bytes and no spaces"
        ));
    }
    Ok(text.to_owned())
}

fn parse_text(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > TEXT_MAX || text.contains(char::is_control) {
        return Err(format!("{text:?} is not 1 to {TEXT_MAX} bytes without control characters"));
    }
    Ok(text.to_owned())
}

/// Parses an entry of a descriptor: `key=value`, or `key` for any value.
fn parse_entry(text: &str) -> Result<EntryPattern, String> {
    let (key, value) = match text.split_once('=') {
        Some((key, value)) => (key, Some(parse_text(value)?)),
        None => (text, None),
    };
    Ok(EntryPattern { key: parse_text(key)?, value })
}

fn parse_units(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is not a whole number from 0"))
}

fn parse_window(text: &str) -> Result<Nanos, String> {
    let window = parse_duration(text)?.as_nanos();
    // `parse_duration` accepts at most 2^32 seconds, so the conversion does not fail.
    Ok(Nanos::try_from(window).unwrap_or(Nanos::MAX))
}

/// Returns a policy in one line, without its name.
fn show(policy: &Policy) -> String {
    let limit = &policy.limit;
    let mut text = format!("{} {}", algorithm_name(limit.algorithm()), limit.budget());
    if limit.window() != 0 {
        text += &format!(" per {}", show_window(limit.window()));
    }
    if limit.algorithm() == Algorithm::Gcra {
        text += &format!(" burst {}", limit.burst());
    }
    if let Some(prefix) = &policy.prefix {
        text += &format!(" prefix {prefix}");
    }
    if let Some(pattern) = &policy.descriptor {
        text += &format!(" descriptor {pattern}");
    }
    if policy.shadow {
        text += " shadow";
    }
    if let Some(durability) = policy.durability {
        text += &format!(" {}", durability_name(durability));
    }
    text
}

impl Settings {
    /// Returns the policies that differ between `self` and `other`. For each it returns the name,
    /// then the policy in `self` and in `other` as text. The text of a missing policy is empty.
    pub(crate) fn policy_differences(&self, other: &Settings) -> Vec<(String, String, String)> {
        let names: BTreeSet<&str> =
            self.policies.iter().chain(&other.policies).map(|policy| &*policy.name).collect();
        let text = |settings: &Settings, name: &str| {
            settings.policies.iter().find(|policy| policy.name == name).map_or(String::new(), show)
        };
        let texts = names.into_iter().map(|name| (name, text(self, name), text(other, name)));
        let changed = texts.filter(|(_, here, there)| here != there);
        changed.map(|(name, here, there)| (name.to_owned(), here, there)).collect()
    }

    /// Checks that the durability of these settings is not `none` if any of `policies` sets one.
    ///
    /// # Errors
    /// Returns the reason if a policy sets a durability although that of these settings is `none`.
    pub(crate) fn check_policies(&self, policies: &[Policy]) -> Result<(), String> {
        let lasts = self.durability() != Durability::None;
        let promising = policies.iter().find(|policy| policy.durability.is_some() && !lasts);
        let Some((policy, durability)) =
            promising.and_then(|policy| Some((policy, policy.durability?)))
        else {
            return Ok(());
        };
        Err(format!(
            "limit {:?}: durability {} needs something that lasts: give --store PATH without \
             --durability none, or leave it out",
            policy.name,
            durability_name(durability),
        ))
    }
}

#[cfg(test)]
mod tests;
