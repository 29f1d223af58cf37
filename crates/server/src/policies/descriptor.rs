//! Descriptors. A proxy such as Envoy sends a descriptor to a rate limit service to describe a
//! request. A descriptor is a list of entries in a domain, and an entry is a key and a value. For
//! example, the entries `route` = `login` and `remote_address` = `10.0.0.1` describe a request for
//! a login.
//!
//! A policy may have a pattern of descriptors. It then limits all descriptors of this pattern. Each
//! combination of the values that the pattern leaves open has its own limiter.

use std::cmp::Ordering;
use std::fmt;

/// The descriptors that a policy limits.
///
/// Patterns are ordered by domain and keys. Among patterns with the same keys, an entry with a
/// value precedes one without. The patterns are tried in this order, so the first match is the most
/// specific one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorPattern {
    /// The domain of the descriptors.
    pub domain: String,
    /// One pattern for each entry of a descriptor, in the order of the entries.
    pub entries: Vec<EntryPattern>,
}

/// The pattern of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryPattern {
    /// The key of the entry.
    pub key: String,
    /// The value of the entry. With `None`, the entry may have any value.
    pub value: Option<String>,
}

/// The entries of a descriptor: keys and values. Values that a proxy takes from its clients can
/// have any bytes.
pub(crate) type Entries<'e> = [(&'e [u8], &'e [u8])];

impl DescriptorPattern {
    fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.entries.iter().map(|entry| entry.key.as_bytes())
    }

    /// Returns the values as sort keys: an entry with a value precedes one without.
    fn values(&self) -> impl Iterator<Item = (bool, Option<&str>)> {
        self.entries.iter().map(|entry| (entry.value.is_none(), entry.value.as_deref()))
    }

    /// Compares the domain and the keys of the entries with those of a descriptor.
    pub(super) fn compare_keys(&self, domain: &str, entries: &Entries<'_>) -> Ordering {
        let theirs = entries.iter().map(|(key, _)| *key);
        self.domain.as_str().cmp(domain).then_with(|| self.keys().cmp(theirs))
    }

    /// Returns true if a descriptor with the same keys has the values of the pattern.
    pub(super) fn has_values(&self, entries: &Entries<'_>) -> bool {
        let mut pairs = self.entries.iter().zip(entries);
        pairs.all(|(entry, (_, value))| {
            entry.value.as_ref().is_none_or(|own| own.as_bytes() == *value)
        })
    }

    /// Returns the key of a descriptor of this pattern, without the policy's prefix: the values
    /// that the pattern leaves open, joined by `/`. In the values, `/` and `%` are percent-encoded.
    /// So two descriptors never share a key, and all keys of a pattern have the same number of `/`.
    /// The settings rely on this: they refuse two policies if a descriptor's key of one could begin
    /// with the prefix of the other.
    pub(crate) fn key_of(&self, entries: &Entries<'_>) -> Vec<u8> {
        let pairs = self.entries.iter().zip(entries);
        let open: Vec<&[u8]> = pairs
            .filter(|(entry, _)| entry.value.is_none())
            .map(|(_, (_, value))| *value)
            .collect();
        let mut key = Vec::new();
        for (at, value) in open.into_iter().enumerate() {
            if at > 0 {
                key.push(b'/');
            }
            for byte in value {
                match byte {
                    b'%' => key.extend_from_slice(b"%25"),
                    b'/' => key.extend_from_slice(b"%2F"),
                    _ => key.push(*byte),
                }
            }
        }
        key
    }
}

impl Ord for DescriptorPattern {
    fn cmp(&self, other: &DescriptorPattern) -> Ordering {
        let by_keys = self.domain.cmp(&other.domain).then_with(|| self.keys().cmp(other.keys()));
        by_keys.then_with(|| self.values().cmp(other.values()))
    }
}

impl PartialOrd for DescriptorPattern {
    fn partial_cmp(&self, other: &DescriptorPattern) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for DescriptorPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.domain)?;
        self.entries.iter().try_for_each(|entry| write!(f, " {entry}"))
    }
}

impl fmt::Display for EntryPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{}={value}", self.key),
            None => write!(f, "{}", self.key),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Parses a pattern in the form `domain key=value key`.
    pub(crate) fn pattern(text: &str) -> DescriptorPattern {
        let mut words = text.split(' ');
        let domain = words.next().unwrap().to_owned();
        let entry = |word: &str| match word.split_once('=') {
            Some((key, value)) => {
                EntryPattern { key: key.to_owned(), value: Some(value.to_owned()) }
            }
            None => EntryPattern { key: word.to_owned(), value: None },
        };
        DescriptorPattern { domain, entries: words.map(entry).collect() }
    }

    #[test]
    fn the_key_has_the_open_values() {
        let key = |text: &str, entries: &[(&'static str, &'static str)]| {
            let bytes =
                |(key, value): &(&'static str, &'static str)| (key.as_bytes(), value.as_bytes());
            let entries: Vec<_> = entries.iter().map(bytes).collect();
            String::from_utf8(pattern(text).key_of(&entries)).unwrap()
        };
        let login = ("route", "login");
        assert_eq!(key("d route=login", &[login]), "");
        assert_eq!(key("d route=login user", &[login, ("user", "a/b%")]), "a%2Fb%25");
        assert_eq!(key("d route user", &[login, ("user", "a/b%")]), "login/a%2Fb%25");
        let (first, second) = ([("a", "x/y"), ("b", "z")], [("a", "x"), ("b", "y/z")]);
        assert_ne!(key("d a b", &first), key("d a b", &second));
        assert_eq!(pattern("d route=login user").to_string(), "d route=login user");
    }
}
