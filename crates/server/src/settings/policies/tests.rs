use super::*;

fn read_text(text: &str) -> Result<Vec<Policy>, String> {
    let table: toml::Table = text.parse().unwrap();
    read(Path::new("larder.toml"), text, &table[KEY]).map_err(|error| error.to_string())
}

fn settings(text: &str) -> Settings {
    Settings { policies: read_text(text).unwrap(), ..Settings::default() }
}

#[test]
fn policies_are_read_with_their_defaults() {
    let policies = read_text(
        "[[limit]]\nname = 'logins'\nbudget = 5\n\
         [[limit]]\nname = 'api/v1.2:read_only-x'\nprefix = 'api/'\nbudget = '100'\nwindow = 60\n\
         algorithm = 'gcra'\nburst = 20\nshadow = true\ndurability = 'sync'\n\
         [[limit]]\nname = 'c'\nbudget = 7\nwindow = '250ms'\nalgorithm = 'sliding'\n\
         [[limit]]\nname = 'd'\nbudget = 7\nwindow = '1d'\nalgorithm = 'gcra'\n",
    )
    .unwrap();
    let [logins, api, c, d] = policies.as_slice() else { panic!("{policies:?}") };
    assert_eq!(logins.limit, Limit::fixed(5, 0));
    assert!(logins.prefix.is_none() && !logins.shadow && logins.durability.is_none());
    assert_eq!(api.name, "api/v1.2:read_only-x");
    assert_eq!(api.prefix.as_deref(), Some("api/"));
    assert_eq!(api.limit, Limit::gcra(100, 60_000_000_000, 20).unwrap());
    assert_eq!(api.limit.capacity(), 20);
    assert!(api.shadow);
    assert_eq!(api.durability, Some(Durability::Sync));
    assert_eq!(c.limit, Limit::sliding(7, 250_000_000).unwrap());
    assert_eq!(d.limit, Limit::gcra(7, 86_400_000_000_000, 7).unwrap());
    let shown: Vec<_> = policies.iter().map(show).collect();
    assert_eq!(
        shown,
        [
            "fixed 5",
            "gcra 100 per 60s burst 20 prefix api/ shadow sync",
            "sliding 7 per 250ms",
            "gcra 7 per 86400s burst 7"
        ]
    );
}

#[test]
fn descriptors_are_lists_of_entries() {
    let policies = read_text(
        "[[limit]]\nname = 'a'\nbudget = 1\nprefix = 'a/'\ndomain = 'edge'\n\
         descriptor = ['route=login=1', 'remote_address']\n\
         [[limit]]\nname = 'b'\nbudget = 1\nprefix = 'b/'\ndomain = 'edge'\n\
         descriptor = ['remote_address']\n",
    )
    .unwrap();
    let pattern = policies[0].descriptor.as_ref().unwrap();
    assert_eq!(pattern.domain, "edge");
    let entries: Vec<_> =
        pattern.entries.iter().map(|entry| (&*entry.key, entry.value.as_deref())).collect();
    assert_eq!(entries, [("route", Some("login=1")), ("remote_address", None)]);
    assert_eq!(
        show(&policies[0]),
        "fixed 1 prefix a/ descriptor edge route=login=1 remote_address"
    );

    let fault = |keys: &str| read_text(&format!("[[limit]]\nname = 'a'\nbudget = 1\n{keys}"));
    let cases = [
        ("domain = 'd'", "line 4: limit \"a\": domain: a domain needs a descriptor"),
        ("descriptor = ['k']", "line 4: limit \"a\": descriptor: a descriptor needs the domain"),
        ("domain = 'd'\ndescriptor = 'k'", "descriptor: it takes a list in brackets"),
        ("domain = 'd'\ndescriptor = []", "descriptor: give 1 to 16 entries"),
        ("domain = 'd'\ndescriptor = ['']", "descriptor: \"\" is not 1 to 250 bytes"),
        ("domain = 'd'\ndescriptor = ['k=']", "descriptor: \"\" is not 1 to 250 bytes"),
        ("domain = ''\ndescriptor = ['k']", "domain: \"\" is not 1 to 250 bytes"),
        ("domain = 'd'\ndescriptor = ['k']", "could choose any key: give a prefix"),
        (
            "prefix = 'a/'\ndomain = 'd'\ndescriptor = ['k']\n\
             [[limit]]\nname = 'b'\nbudget = 1\nprefix = 'b/'\ndomain = 'd'\ndescriptor = ['k']",
            "line 12: limit \"b\": descriptor: an earlier policy has the same descriptor",
        ),
    ];
    for (keys, expected) in cases {
        let error = fault(keys).unwrap_err();
        assert!(error.contains(expected), "{keys}: {error}");
    }
}

#[test]
fn errors_name_the_line_and_the_remedy() {
    let good = "[[limit]]\nname = 'a'\nbudget = 1\nprefix = 'a/'\n";
    let cases = [
        ("limit = 3", "larder.toml: limit: write [[limit]] above the keys of each policy"),
        ("[limit]\nname = 'a'", "larder.toml: limit: write [[limit]] above"),
        ("limit = [3]", "larder.toml: limit: write [[limit]] above"),
        ("[[limit]]", "line 1: limit: it has no name: write for example name = \"logins\""),
        (
            "memory = 64\n\n[[limit]]\nname = 'a'",
            "larder.toml: line 3: limit \"a\": it has no budget: write for example budget = 100",
        ),
        (
            "[[limit]]\nname = 'a'\n\nbugdet = 1",
            "larder.toml: line 4: limit \"a\": there is no key \"bugdet\": did you mean \"budget\"?",
        ),
        ("[[limit]]\ncolour = 1", "line 2: limit: there is no key \"colour\": the keys are name,"),
        (
            "[[limit]]\nname = 'a b'",
            "line 2: limit \"a b\": name: \"a b\" is not a name: use 1 to 64",
        ),
        ("[[limit]]\nname = ''", "name: \"\" is not a name"),
        ("[[limit]]\nname = 'ä'", "is not a name"),
        ("budget = -1", "line 7: limit \"b\": budget: \"-1\" is not a whole number from 0"),
        ("budget = 1.5", "budget: \"1.5\" is not a whole number from 0"),
        ("budget = 1\nwindow = 'soon'", "line 8: limit \"b\": window: \"soon\" is not a duration"),
        ("budget = 1\nalgorithm = 'leaky'", "\"leaky\" is not one of fixed, sliding, gcra"),
        (
            "budget = 1\nalgorithm = 'sliding'",
            "line 5: limit \"b\": window: sliding needs a window: write for example window = \"60s\"",
        ),
        (
            "budget = 1\nalgorithm = 'gcra'\nwindow = 0",
            "line 9: limit \"b\": window: gcra needs a window",
        ),
        (
            "budget = 1\nburst = 2",
            "line 8: limit \"b\": burst: only the algorithm gcra has a burst",
        ),
        ("budget = 1\nshadow = 'maybe'", "shadow: \"maybe\" is neither true nor false"),
        ("budget = 1\ndurability = 'none'", "durability: \"none\" is not one of async, sync"),
        ("budget = 1\nprefix = ''", "prefix: it is empty: leave it out"),
        ("budget = 1\nprefix = 'a b'", "prefix: \"a b\" begins no key"),
        (
            "budget = 1\nprefix = 'a/'",
            "line 8: limit \"b\": prefix: an earlier policy has the same",
        ),
        ("budget = [5]", "budget: it takes one value, not a list"),
        ("budget = {}", "budget: it must be a string, a number"),
        ("budget = 1\n[[limit]]\nname = 'a'\nbudget = 1", "line 9: limit \"a\": name: an earlier"),
    ];
    for (text, expected) in cases {
        // A text that begins with `budget` completes a second policy, named `b`, which follows the
        // policy `good`. The first line of such a text is line 7 of the file.
        let text = match text.starts_with("budget") {
            true => format!("{good}[[limit]]\nname = 'b'\n{text}"),
            false => text.to_owned(),
        };
        let error = read_text(&text).unwrap_err();
        assert!(error.contains(expected), "{text}\n{error}");
    }
    let many: String =
        (0..=POLICIES_MAX).map(|n| format!("[[limit]]\nname = '{n}'\nbudget = 1\n")).collect();
    assert!(read_text(&many).unwrap_err().contains("there are at most 1024 policies"));
}

#[test]
fn differences_name_policies_that_come_change_and_go() {
    let here = settings(
        "[[limit]]\nname = 'goes'\nbudget = 1\n[[limit]]\nname = 'stays'\nbudget = 2\n\
         [[limit]]\nname = 'changes'\nbudget = 3\n",
    );
    let there = settings(
        "[[limit]]\nname = 'stays'\nbudget = 2\n\
         [[limit]]\nname = 'changes'\nbudget = 3\nshadow = true\n\
         [[limit]]\nname = 'comes'\nbudget = 4\nwindow = '1h'\n",
    );
    let differences = here.policy_differences(&there);
    let differences: Vec<_> =
        differences.iter().map(|(name, from, to)| [name, from, to].map(String::as_str)).collect();
    assert_eq!(
        differences,
        [
            ["changes", "fixed 3", "fixed 3 shadow"],
            ["comes", "", "fixed 4 per 3600s"],
            ["goes", "fixed 1", ""],
        ]
    );
    assert!(here.policy_differences(&here.clone()).is_empty());
}

/// The item key made from a descriptor must not begin with the longer prefix of another policy.
/// With such a key, clients of a proxy could use up the limiters of the other policy.
#[test]
fn descriptors_do_not_reach_other_prefixes() {
    let read = |prefix: &str, descriptor: &str, other: &str| {
        read_text(&format!(
            "[[limit]]\nname = 'a'\nbudget = 1\nprefix = '{other}'\n\
             [[limit]]\nname = 'b'\nbudget = 1\nprefix = '{prefix}'\n\
             domain = 'd'\ndescriptor = [{descriptor}]\n"
        ))
    };
    // The values `b` and `x` of two entries would give the item key `a/b/x`, which begins with the
    // prefix of the other policy.
    let expected = "larder.toml: line 8: limit \"b\": prefix: keys of its descriptors could begin \
                    with \"a/b/\", the prefix of \"a\": give it a prefix that no other one begins with";
    assert_eq!(read("a/", "'k', 'l'", "a/b/").unwrap_err(), expected);
    for (prefix, descriptor, other, is_apart) in [
        ("a/", "'k'", "a/b/", true),
        ("a/", "'k=1', 'l'", "a/b/", true),
        ("a/", "'k', 'l'", "a/b/c/", true),
        ("a/", "'k', 'l', 'm'", "a/b/c/", false),
        ("a/b/", "'k', 'l'", "a/", true),
        ("a/", "'k', 'l'", "b/", true),
        ("u", "'k'", "us/", true),
        ("u", "'k'", "us", false),
        ("u", "'k', 'l'", "us/", false),
        ("u", "'k=1'", "us", true),
    ] {
        let read = read(prefix, descriptor, other);
        assert_eq!(read.is_ok(), is_apart, "{prefix} {descriptor} {other}");
    }
}
