//! Finds files of a crate that use each other in a circle, by the paths in their text.
//!
//! A file uses another file if its text names something of that file through `crate::`, `super::`
//! or the name of a child module. If a file only re-exports a name, the name belongs to the file
//! that defines it. A call of a method names no path, so circles of such calls are not found.

use std::collections::{BTreeMap, BTreeSet};

/// The modules of one crate, by path: `["log", "commit"]` is `commit/mod.rs` or `commit.rs`.
type Modules = BTreeMap<Vec<String>, Module>;

struct Module {
    file: String,
    /// Text without comments and string literals.
    text: String,
    /// Maps each re-exported name to the path that it stands for.
    exports: BTreeMap<String, Vec<String>>,
}

/// Returns the circles of a crate, as sorted groups of files. In a group, each file uses each other
/// one, directly or through files of the group. `sources` maps the names of files below the crate's
/// `src/` to their texts.
pub(crate) fn circles(sources: &BTreeMap<String, String>) -> Vec<Vec<String>> {
    strongly_connected(&edges(sources))
}

/// Returns the files that each file uses.
pub(crate) fn edges(sources: &BTreeMap<String, String>) -> BTreeMap<String, BTreeSet<String>> {
    let mut modules = Modules::new();
    for (file, text) in sources {
        let text = without_comments(text);
        let path = module_path(file);
        let exports = exports(&text, &path, sources);
        modules.insert(path, Module { file: file.clone(), text, exports });
    }
    let mut uses = BTreeMap::new();
    for (path, module) in &modules {
        let named = named_paths(path, module, &modules).into_iter();
        let files = named.map(|named| modules[&resolve(&named, &modules)].file.clone());
        // The root of a crate only declares and re-exports, so uses of `lib.rs` do not count.
        let others = files.filter(|file| *file != module.file && file != "lib.rs");
        uses.insert(module.file.clone(), others.collect());
    }
    uses
}

fn module_path(file: &str) -> Vec<String> {
    let path = file.trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    if matches!(path, "lib" | "main") {
        return Vec::new();
    }
    path.split('/').map(str::to_owned).collect()
}

/// Removes comments and string literals.
fn without_comments(text: &str) -> String {
    let mut kept = String::new();
    for line in text.lines() {
        let code = line.split("//").next().unwrap_or(line);
        for (index, part) in code.split('"').enumerate() {
            if index % 2 == 0 {
                kept.push_str(part);
            }
        }
        kept.push('\n');
    }
    kept
}

/// Finds the re-exports in `text`, the source of module `path`. Returns a map from each re-exported
/// name to the absolute path of what it stands for.
fn exports(
    text: &str,
    path: &[String],
    sources: &BTreeMap<String, String>,
) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    for statement in text.split(';') {
        let Some(at) = statement.find("pub") else { continue };
        let Some(tree) = statement[at..].split_once(" use ").map(|(_, tree)| tree.trim()) else {
            continue;
        };
        for named in use_tree(tree) {
            let Some(name) = named.last().cloned() else { continue };
            let is_child = |first: &String| {
                let child = [path, std::slice::from_ref(first)].concat().join("/");
                sources.contains_key(&format!("{child}.rs"))
                    || sources.contains_key(&format!("{child}/mod.rs"))
            };
            let absolute = match named.first() {
                Some(first) if is_child(first) => [path, &named].concat(),
                _ => absolute(&named, path),
            };
            found.insert(name, absolute);
        }
    }
    found
}

/// Returns the paths in a `use` tree: `a::{b, c::d}` names `a::b` and `a::c::d`.
fn use_tree(tree: &str) -> Vec<Vec<String>> {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        let path = tree.split(" as ").next().unwrap_or(tree);
        let segments = path.split("::").map(|segment| segment.trim().to_owned());
        return vec![segments.filter(|segment| !segment.is_empty() && segment != "self").collect()];
    };
    let prefix: Vec<String> = tree[..open]
        .split("::")
        .map(|segment| segment.trim().to_owned())
        .filter(|segment| !segment.is_empty())
        .collect();
    let (mut found, mut depth, mut start) = (Vec::new(), 0, open + 1);
    for (at, byte) in tree.bytes().enumerate().skip(open) {
        depth += i32::from(byte == b'{') - i32::from(byte == b'}');
        if (depth == 1 && byte == b',') || (depth == 0 && byte == b'}') {
            if !tree[start..at].trim().is_empty() {
                let below = use_tree(&tree[start..at]).into_iter();
                found.extend(below.map(|path| [prefix.clone(), path].concat()));
            }
            start = at + 1;
        }
        if depth == 0 {
            break;
        }
    }
    found
}

/// Resolves `crate` and `super` at the front of `named`, a path in the text of module `path`.
fn absolute(named: &[String], path: &[String]) -> Vec<String> {
    match named.first().map(String::as_str) {
        Some("crate") => named[1..].to_vec(),
        Some("super") => {
            let mut base = path.to_vec();
            let ups = named.iter().take_while(|segment| *segment == "super").count();
            base.truncate(base.len().saturating_sub(ups));
            [base, named[ups..].to_vec()].concat()
        }
        _ => named.to_vec(),
    }
}

/// Returns the absolute paths that a module's text names, except the paths in its re-exports.
fn named_paths(path: &[String], module: &Module, modules: &Modules) -> Vec<Vec<String>> {
    let text = &module.text;
    let children = modules
        .keys()
        .filter(|other| other.len() == path.len() + 1 && other.starts_with(path))
        .filter_map(|other| other.last().map(|name| format!("{name}::")));
    let mut found = Vec::new();
    for prefix in ["crate::", "super::"].map(str::to_owned).into_iter().chain(children) {
        for (at, _) in text.match_indices(&prefix) {
            let before = &text[..at];
            let inside = before.ends_with(|c: char| c.is_alphanumeric() || "_:$".contains(c));
            // The path of a visibility, as in `pub(in crate::a)`, uses nothing.
            let inside = inside || before.ends_with("(in ");
            let statement = before.rsplit([';', '}']).next().unwrap_or(before);
            let exported = statement.contains("pub") && statement.contains(" use ");
            if inside || exported {
                continue;
            }
            let is_use = statement.trim_end().ends_with("use")
                || statement.contains(" use ")
                || statement.trim_start().starts_with("use ");
            let rest = &text[at..];
            let end = if is_use {
                rest.find(';')
            } else {
                rest.find(|c: char| !(c.is_alphanumeric() || "_:".contains(c)))
            };
            for named in use_tree(&rest[..end.unwrap_or(rest.len())]) {
                let is_child = !matches!(named[0].as_str(), "crate" | "super");
                found.push(if is_child { [path, &named].concat() } else { absolute(&named, path) });
            }
        }
    }
    found
}

/// Returns the module that defines the item at the path `named`. Replaces re-exported names by
/// their paths until none is left, and then returns the longest prefix of the path that is a
/// module.
fn resolve(named: &[String], modules: &Modules) -> Vec<String> {
    let mut named = named.to_vec();
    for _ in 0..8 {
        let length = (0..=named.len()).rev().find(|&length| modules.contains_key(&named[..length]));
        let length = length.unwrap_or(0);
        let behind = named.get(length).and_then(|name| modules[&named[..length]].exports.get(name));
        match behind {
            Some(behind) if *behind != named => {
                named = [behind.clone(), named[length + 1..].to_vec()].concat();
            }
            _ => return named[..length].to_vec(),
        }
    }
    Vec::new()
}

/// Returns the strongly connected components of more than one node.
fn strongly_connected(uses: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = uses
        .keys()
        .map(|start| {
            let (mut seen, mut open) = (BTreeSet::new(), vec![start.as_str()]);
            while let Some(file) = open.pop() {
                for next in uses.get(file).into_iter().flatten() {
                    if seen.insert(next.as_str()) {
                        open.push(next);
                    }
                }
            }
            (start.as_str(), seen)
        })
        .collect();
    let mut found = BTreeSet::new();
    for (&file, seen) in &reached {
        let circle: Vec<String> = seen
            .iter()
            .filter(|&&other| other == file || reached[other].contains(file))
            .map(|&other| other.to_owned())
            .collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

#[test]
fn a_circle_is_found_through_reexports_children_and_parents() {
    let sources = [
        ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\npub use a::A;"),
        ("a/mod.rs", "mod part;\npub(crate) use part::Part;\nuse crate::b;\npub struct A;"),
        ("a/part.rs", "use crate::c::{self, Text};\n/// Not a use: `crate::d`.\nstruct Part;"),
        ("e.rs", "pub(in crate::a) struct E;"),
        ("b.rs", "fn f() { let part = crate::a::Part; }"),
        ("c.rs", "fn f() { super::b::f(\"crate::d\") }"),
        ("d.rs", "use crate::{A, b::f};"),
    ];
    let sources = sources.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
    assert_eq!(circles(&sources), [["a/part.rs", "b.rs", "c.rs"]]);
    assert_eq!(edges(&sources)["d.rs"], ["a/mod.rs", "b.rs"].map(str::to_owned).into());
    assert_eq!(edges(&sources)["e.rs"], BTreeSet::new());
    assert_eq!(edges(&sources)["a/mod.rs"], ["b.rs".to_owned()].into());
}
