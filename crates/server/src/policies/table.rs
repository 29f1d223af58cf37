//! The table of policies, found by name, by the longest prefix of a key, and by descriptor. A table
//! never changes.

use std::sync::Arc;

use super::{DescriptorPattern, Entries, Policy};

/// The policies of one version of the settings.
#[derive(Debug, Default)]
pub struct Policies {
    /// The policies, in the order of their names.
    policies: Vec<Arc<Policy>>,
    /// The prefixes of policies, in the order of their bytes. So a prefix comes after all shorter
    /// prefixes that it begins with.
    prefixes: Vec<Prefix>,
    /// The patterns of descriptors in the order in which they are tried, with their policies.
    described: Vec<(DescriptorPattern, Arc<Policy>)>,
}

#[derive(Debug)]
struct Prefix {
    bytes: Box<[u8]>,
    /// The index of the policy.
    policy: usize,
    /// The index of the longest other prefix that this one begins with.
    shorter: Option<usize>,
}

impl Policies {
    /// Creates a table of `policies`, whose names and prefixes are unique.
    pub fn new(mut policies: Vec<Policy>) -> Policies {
        policies.sort_by(|a, b| a.name.cmp(&b.name));
        let named = policies.iter().enumerate();
        let mut sorted: Vec<(&str, usize)> =
            named.filter_map(|(at, policy)| Some((policy.prefix.as_deref()?, at))).collect();
        sorted.sort_unstable();
        let mut prefixes = Vec::with_capacity(sorted.len());
        for (prefix, policy) in sorted {
            let bytes: Box<[u8]> = prefix.as_bytes().into();
            let shorter = longest(&prefixes, prefixes.len(), &bytes);
            prefixes.push(Prefix { bytes, policy, shorter });
        }
        let policies: Vec<_> = policies.into_iter().map(Arc::new).collect();
        let pair = |policy: &Arc<Policy>| Some((policy.descriptor.clone()?, Arc::clone(policy)));
        let mut described: Vec<_> = policies.iter().filter_map(pair).collect();
        described.sort_by(|(a, _), (b, _)| a.cmp(b));
        Policies { policies, prefixes, described }
    }

    /// Creates a table of `policies`. They share the counters of the policies in `self` with the
    /// same name.
    pub(super) fn replaced_by(&self, mut policies: Vec<Policy>) -> Policies {
        for policy in &mut policies {
            if let Some(old) = self.named(policy.name.as_bytes()) {
                policy.counters = Arc::clone(&old.counters);
            }
        }
        Policies::new(policies)
    }

    /// Returns the policy with this name.
    pub fn named(&self, name: &[u8]) -> Option<&Policy> {
        self.shared(name).map(|policy| &**policy)
    }

    /// Returns the policy with this name, for callers that keep it longer than the table.
    pub(crate) fn shared(&self, name: &[u8]) -> Option<&Arc<Policy>> {
        let at = self.policies.binary_search_by(|policy| policy.name.as_bytes().cmp(name));
        self.policies.get(at.ok()?)
    }

    /// Returns the policy with the longest prefix that `key` begins with.
    #[inline]
    pub fn of(&self, key: &[u8]) -> Option<&Policy> {
        if self.prefixes.is_empty() { None } else { self.with_prefix_of(key) }
    }

    fn with_prefix_of(&self, key: &[u8]) -> Option<&Policy> {
        let end = self.prefixes.partition_point(|prefix| &*prefix.bytes <= key);
        let prefix = self.prefixes.get(longest(&self.prefixes, end, key)?)?;
        self.policies.get(prefix.policy).map(|policy| &**policy)
    }

    /// Returns all policies, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Policy> {
        self.policies.iter().map(|policy| &**policy)
    }

    /// Returns the policy that limits a descriptor, and the pattern that matches. If several
    /// patterns match, the first entry in which they differ decides: the pattern that requires a
    /// value there wins.
    pub(crate) fn describing(
        &self,
        domain: &str,
        entries: &Entries<'_>,
    ) -> Option<(&DescriptorPattern, &Arc<Policy>)> {
        let order = |pattern: &DescriptorPattern| pattern.compare_keys(domain, entries);
        let start = self.described.partition_point(|(pattern, _)| order(pattern).is_lt());
        let from = self.described[start..].iter();
        let mut same_keys = from.take_while(|(pattern, _)| order(pattern).is_eq());
        let (pattern, policy) = same_keys.find(|(pattern, _)| pattern.has_values(entries))?;
        Some((pattern, policy))
    }
}

/// Returns the index of the longest prefix that `key` begins with. `end` is the number of prefixes
/// that are not greater than `key` in the order of bytes.
///
/// The search begins with the last of these `end` prefixes and follows `shorter`. This finds every
/// prefix `m` of `key`: in the order of bytes, the last prefix is not less than `m` and not greater
/// than `key`. So the last prefix begins with `m` too.
fn longest(prefixes: &[Prefix], end: usize, key: &[u8]) -> Option<usize> {
    let mut at = end.checked_sub(1);
    while let Some(prefix) = prefixes.get(at?) {
        if key.starts_with(&prefix.bytes) {
            return at;
        }
        at = prefix.shorter;
    }
    None
}

#[cfg(test)]
mod tests {
    use larder_engine::limit::Limit;

    use super::super::pattern;
    use super::*;

    fn policies(prefixes: &[&str]) -> Policies {
        let policy = |(at, prefix): (usize, &&str)| Policy {
            prefix: Some((*prefix).to_owned()),
            ..Policy::new(format!("policy-{at}"), Limit::fixed(1, 0))
        };
        Policies::new(prefixes.iter().enumerate().map(policy).collect())
    }

    #[test]
    fn policies_are_found_by_name() {
        let table = Policies::new(
            ["b", "a", "c/d"].map(|name| Policy::new(name, Limit::fixed(1, 0))).to_vec(),
        );
        for name in ["a", "b", "c/d"] {
            assert_eq!(table.named(name.as_bytes()).unwrap().name, name);
        }
        for name in ["", "A", "c", "c/d/", "z"] {
            assert!(table.named(name.as_bytes()).is_none(), "{name}");
        }
        assert!(table.of(b"a").is_none(), "no policy has a prefix");
        assert!(table.iter().map(|policy| &*policy.name).eq(["a", "b", "c/d"]));
    }

    /// Compares [`Policies::describing`] with a search through all patterns.
    #[test]
    fn the_most_specific_descriptor_wins() {
        let patterns = [
            "d a",
            "d a=1",
            "d a=2",
            "d a b",
            "d a=1 b",
            "d a b=1",
            "d a=1 b=1",
            "d b",
            "d b a",
            "e a",
            "e a=1 b=2 c",
        ];
        let policy = |text: &&str| Policy {
            descriptor: Some(pattern(text)),
            ..Policy::new(text.replace([' ', '='], "."), Limit::fixed(1, 0))
        };
        let mut values = vec![];
        for domain in ["c", "d", "e"] {
            for keys in [&["a"][..], &["b"], &["a", "b"], &["b", "a"], &["a", "b", "c"], &[]] {
                for value in 0..3_usize.pow(keys.len() as u32) {
                    let digit = |at: usize| ["1", "2", "3"][value / 3_usize.pow(at as u32) % 3];
                    let bytes =
                        |(at, key): (usize, &&'static str)| (key.as_bytes(), digit(at).as_bytes());
                    let entries = keys.iter().enumerate().map(bytes);
                    values.push((domain, entries.collect::<Vec<_>>()));
                }
            }
        }
        for count in 0..=patterns.len() {
            let table = Policies::new(patterns[..count].iter().map(policy).collect());
            for (domain, entries) in &values {
                let matches = |text: &&&str| {
                    let pattern = pattern(text);
                    let pairs = pattern.entries.iter().zip(entries);
                    pattern.domain == *domain
                        && pattern.entries.len() == entries.len()
                        && pairs.into_iter().all(|(own, (key, value))| {
                            own.key.as_bytes() == *key
                                && own.value.as_deref().is_none_or(|own| own.as_bytes() == *value)
                        })
                };
                let open = |text: &&&str| -> Vec<bool> {
                    pattern(text).entries.iter().map(|entry| entry.value.is_none()).collect()
                };
                let expected = patterns[..count].iter().filter(matches).min_by_key(open);
                let found = table.describing(domain, entries);
                let found = found.map(|(_, policy)| policy.name.clone());
                let expected = expected.map(|text| text.replace([' ', '='], "."));
                assert_eq!(found, expected, "{domain} {entries:?} of {count}");
            }
        }
    }

    /// Compares [`Policies::of`] with a search through all prefixes.
    #[test]
    fn the_longest_prefix_wins() {
        let prefixes = ["a", "ab", "abc", "abd", "b/", "b/a", "b/c/", "b/c/d", "ba", "z", "é"];
        let keys = [
            "", "a", "aa", "ab", "abb", "abcd", "abd", "abe", "ac", "b", "b/", "b/b", "b/c",
            "b/c/", "b/c/c", "b/c/dd", "b/c/e", "b/z", "ba", "bb", "c", "y", "z", "zz", "é", "éa",
            "ü",
        ];
        for count in 0..=prefixes.len() {
            let table = policies(&prefixes[..count]);
            for key in keys {
                let matching = prefixes[..count].iter().filter(|prefix| key.starts_with(**prefix));
                let expected = matching.max_by_key(|prefix| prefix.len());
                let found = table.of(key.as_bytes()).and_then(|policy| policy.prefix.as_ref());
                assert_eq!(found.map(String::as_str), expected.copied(), "{key:?} of {count}");
            }
        }
    }
}
