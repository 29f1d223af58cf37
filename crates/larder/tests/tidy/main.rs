//! Mistakes that must never be in this tree, found by searching its text. STYLE.md has the reasons.
//!
//! A large file or function is not a failure, but a developer should look at it again.
//! `cargo test --test tidy -- --nocapture sizes` lists them.

mod circles;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directories that are not searched.
const SKIPPED: [&str; 5] = [".git", "target", "node_modules", "__pycache__", "corpus"];

/// Crates in which three or more files must not use each other in a circle.
const LAYERED_CRATES: [&str; 3] = ["engine", "log", "server"];

/// Modules of `protocol` whose types may have the same names, such as `Request`. Each module
/// describes one protocol, and no file of another crate uses the requests of both.
const PROTOCOL_MODULES: [&str; 2] = ["binary", "text"];

/// Crates that must not use `unsafe`: they neither share memory nor call the kernel.
const SAFE_CRATES: [&str; 3] = ["client", "protocol", "sim"];

/// The largest number of columns of code and comments, as in `rustfmt.toml`.
const WIDTH: usize = 100;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("workspace root")
}

/// Returns every file under `directory`, in order.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_path_buf()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).expect("readable directory") {
            let path = entry.expect("directory entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // A module may have the name of a skipped directory.
            let skipped = SKIPPED.contains(&name.as_str()) && !path.join("mod.rs").exists();
            if skipped || path.is_symlink() {
                continue;
            }
            if path.is_dir() { open.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

/// Returns the text files of the project with their names relative to its root.
fn texts() -> Vec<(String, String)> {
    let root = root();
    files(&root)
        .into_iter()
        .filter_map(|path| {
            let name = path.strip_prefix(&root).expect("under root").display().to_string();
            fs::read_to_string(&path).ok().map(|text| (name, text))
        })
        .collect()
}

/// Returns the Rust sources of shipped builds. Leaves out test files, and in all other files the
/// test modules.
fn shipped_sources() -> Vec<(String, String)> {
    let is_test = |name: &str| {
        name.ends_with("/tests.rs") || name.contains("/tests/") || name.contains("/benches/")
    };
    texts()
        .into_iter()
        .filter(|(name, _)| name.starts_with("crates/") && name.ends_with(".rs") && !is_test(name))
        .map(|(name, text)| (name, without_modules(&text, "#[cfg(test)]")))
        .collect()
}

/// Removes the modules that have `attribute`. A module with a body is the last one of its file.
fn without_modules(text: &str, attribute: &str) -> String {
    let head = format!("\n{attribute}\nmod ");
    let mut parts = text.split(&head);
    let mut kept = parts.next().unwrap_or(text).to_owned();
    for part in parts {
        let (declared, rest) = part.split_once('\n').unwrap_or((part, ""));
        if !declared.ends_with(';') {
            break;
        }
        kept.push('\n');
        kept.push_str(rest);
    }
    kept
}

#[test]
fn only_test_modules_are_left_out() {
    let text = "use a::B;\n#[cfg(test)]\nmod tests;\nuse c::D;\n\n#[cfg(test)]\nmod more {\n}\n";
    assert_eq!(without_modules(text, "#[cfg(test)]"), "use a::B;\nuse c::D;\n");
}

/// Returns the Rust sources of a crate as they are built without tests and without loom. The keys
/// are their names below the crate's `src/`.
fn built_sources(name: &str) -> BTreeMap<String, String> {
    let root = format!("crates/{name}/src/");
    shipped_sources()
        .into_iter()
        .filter(|(name, _)| !name.ends_with("loom_tests.rs"))
        .filter_map(|(name, text)| {
            let text = without_modules(&text, "#[cfg(all(test, not(loom)))]");
            Some((name.strip_prefix(&root)?.to_owned(), without_modules(&text, "#[cfg(loom)]")))
        })
        .collect()
}

/// Returns lines of `sources` that contain one of `words`, as `file:line: text`. Searches comments,
/// too.
fn lines_with(sources: &[(String, String)], words: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for (name, text) in sources {
        for (number, line) in text.lines().enumerate() {
            if words.iter().any(|word| line.contains(word.as_str())) {
                found.push(format!("{name}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    found
}

/// Returns the names under one header of a `Cargo.toml`.
fn dependencies(manifest: &str, header: &str) -> BTreeSet<String> {
    let mut inside = false;
    let mut names = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line.trim() == header;
        } else if inside
            && !line.starts_with('#')
            && let Some((name, _)) = line.split_once(['.', '=', ' '])
        {
            names.insert(name.to_owned());
        }
    }
    names
}

/// Maps crate names to manifest texts.
fn manifests() -> BTreeMap<String, String> {
    texts()
        .into_iter()
        .filter_map(|(name, text)| {
            let name = name.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?.to_owned();
            (!name.contains('/')).then_some((name, text))
        })
        .collect()
}

/// Reads the table under `heading` in ARCHITECTURE.md. Returns a map from the first cell of each
/// row to the second.
fn architecture_table(heading: &str) -> BTreeMap<String, String> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let section = text.split(&format!("\n## {heading}\n")).nth(1).expect("section of the table");
    let section = section.split("\n## ").next().unwrap_or(section);
    section
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|line| line.split_once("` |"))
        .map(|(first, rest)| (first.to_owned(), rest.trim().trim_end_matches('|').to_owned()))
        .collect()
}

#[test]
fn crates_depend_on_each_other_as_the_architecture_says() {
    let edges = architecture_table("Crate edges");
    for (name, manifest) in manifests() {
        let allowed = edges.get(&name).unwrap_or_else(|| panic!("{name} has no row"));
        for dependency in dependencies(&manifest, "[dependencies]") {
            if let Some(other) = dependency.strip_prefix("larder-") {
                assert!(
                    allowed.contains(&format!("`{other}`")),
                    "{name} uses {other}, an edge that ARCHITECTURE.md does not list: {allowed}"
                );
            }
        }
    }
}

#[test]
fn files_of_a_crate_use_each_other_in_pairs_at_most() {
    for name in LAYERED_CRATES {
        let mut circles = circles::circles(&built_sources(name));
        circles.retain(|files| files.len() > 2);
        assert!(circles.is_empty(), "circles of files in {name}: {circles:#?}");
    }
}

/// Returns the part of a crate in which a type name must be unique: one of [`PROTOCOL_MODULES`], or
/// the rest of the crate.
fn name_space<'f>(crate_name: &str, file: &'f str) -> &'f str {
    let module = file.split(['/', '.']).next().unwrap_or(file);
    let is_protocol = crate_name == "protocol" && PROTOCOL_MODULES.contains(&module);
    if is_protocol { module } else { "" }
}

#[test]
fn a_type_name_means_one_thing_in_a_crate() {
    for name in manifests().keys() {
        let sources = built_sources(name);
        let mut types = BTreeMap::<(&str, &str), Vec<&str>>::new();
        for (file, text) in &sources {
            for line in text.lines() {
                let line = line.strip_prefix("pub(crate) ").unwrap_or(line);
                let line = line.strip_prefix("pub(super) ").unwrap_or(line);
                let line = line.strip_prefix("pub ").unwrap_or(line);
                let (kind, rest) = line.split_once(' ').unwrap_or_default();
                if matches!(kind, "struct" | "enum" | "trait" | "type") {
                    let type_name = rest.split(|c: char| !c.is_alphanumeric()).next();
                    let type_name = type_name.unwrap_or(rest);
                    types.entry((name_space(name, file), type_name)).or_default().push(file);
                }
            }
        }
        types.retain(|_, files| files.len() > 1);
        assert!(types.is_empty(), "type names that {name} defines twice: {types:#?}");
    }
}

#[test]
fn every_dependency_has_a_reason() {
    let reasons = architecture_table("Dependencies");
    for (name, manifest) in manifests() {
        for header in
            ["[dependencies]", "[dev-dependencies]", "[target.\"cfg(loom)\".dependencies]"]
        {
            for dependency in dependencies(&manifest, header) {
                assert!(
                    dependency.starts_with("larder-") || reasons.contains_key(&dependency),
                    "{name} uses {dependency}, which ARCHITECTURE.md gives no reason for"
                );
            }
        }
    }
}

#[test]
fn nothing_unfinished_is_left_outside_tests() {
    let words = ["todo!(", "dbg!(", "unimplemented!(", "FIXME", "XXX"].map(str::to_owned);
    let found = lines_with(&shipped_sources(), &words);
    assert!(found.is_empty(), "left over:\n{}", found.join("\n"));
}

/// Shipped code must not use `println!` and its relatives: they panic if the output cannot be
/// written, and a panic would change the exit code.
#[test]
fn output_errors_cannot_end_the_program() {
    let words = [" print!(", " println!(", " eprint!(", " eprintln!("].map(str::to_owned);
    let mut sources = shipped_sources();
    sources.retain(|(name, _)| !name.starts_with("crates/sim/"));
    let found = lines_with(&sources, &words);
    assert!(found.is_empty(), "use larder_bench::say and complain:\n{}", found.join("\n"));
}

/// No message may advise to delete a file: even if Larder cannot use the file, it may hold the only
/// copy of a user's data.
#[test]
fn no_message_advises_to_destroy_data() {
    let words = ["remove it", "remove them", "erase", "delete it first", "wipe"].map(str::to_owned);
    let found: Vec<String> = lines_with(&shipped_sources(), &words)
        .into_iter()
        .filter(|line| line.contains('"') && !line.contains(": //"))
        .collect();
    assert!(found.is_empty(), "advice that destroys:\n{}", found.join("\n"));
}

/// Checks the width of comments, because `rustfmt` does not wrap them.
#[test]
fn comments_are_as_narrow_as_the_code() {
    let mut wide = Vec::new();
    for (name, text) in texts().into_iter().filter(|(name, _)| name.ends_with(".rs")) {
        for (number, line) in text.lines().enumerate() {
            let words = line.trim_start().strip_prefix("//").map(str::split_whitespace);
            // A line cannot be wrapped if it is one long word, such as a link. A marker of a doc
            // comment or of a list may stand before the word.
            let can_wrap = words.is_some_and(|words| words.count() > 2);
            if can_wrap && line.chars().count() > WIDTH {
                wide.push(format!("{name}:{}", number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "comments of more than {WIDTH} columns:\n{}", wide.join("\n"));
}

#[test]
fn every_source_file_says_why_it_exists() {
    let silent: Vec<String> = shipped_sources()
        .into_iter()
        .filter(|(_, text)| !text.starts_with("//!"))
        .map(|(name, _)| name)
        .collect();
    assert!(silent.is_empty(), "no head comment in:\n{}", silent.join("\n"));
}

#[test]
fn unsafe_stays_where_memory_is_shared_or_the_kernel_called() {
    let sources: Vec<_> = shipped_sources()
        .into_iter()
        .filter(|(name, _)| {
            SAFE_CRATES.iter().any(|safe| name.starts_with(&format!("crates/{safe}/")))
        })
        .collect();
    let words = ["unsafe {", "unsafe fn", "unsafe impl"].map(str::to_owned);
    let found = lines_with(&sources, &words);
    assert!(found.is_empty(), "unsafe code in a safe crate:\n{}", found.join("\n"));
}

#[test]
fn no_path_of_a_developers_machine() {
    let places = ["work", "root", "home", "Users"].map(|name| format!(" /{name}/"));
    let quoted = ["work", "root", "home", "Users"].map(|name| format!("\"/{name}/"));
    let found = lines_with(&texts(), &[places, quoted].concat());
    assert!(found.is_empty(), "machine paths:\n{}", found.join("\n"));
}

#[test]
fn every_flag_of_serve_is_documented() {
    let help = Command::new(env!("CARGO_BIN_EXE_larder"))
        .args(["serve", "--help"])
        .output()
        .expect("larder runs");
    let help = String::from_utf8(help.stdout).expect("help is text");
    let documented = fs::read_to_string(root().join("docs/settings.md")).expect("docs/settings.md");
    let flags: BTreeSet<&str> = help
        .split(|byte: char| !byte.is_ascii_alphanumeric() && byte != '-')
        .filter(|word| word.starts_with("--") && word.len() > 2)
        .collect();
    assert!(flags.contains("--memory"), "no flags in the help: {help}");
    for flag in flags {
        assert!(
            documented.contains(&format!("`{flag}")),
            "{flag} is in `larder serve --help` and not in docs/settings.md"
        );
    }
}

#[test]
fn sizes() {
    for (name, text) in shipped_sources() {
        let lines = text.lines().count();
        if lines > 500 {
            println!("{name}: {lines} lines before its tests");
        }
        for (function, length) in functions(&text) {
            if length > 70 {
                println!("{name}: {function}: {length} lines");
            }
        }
    }
}

/// Returns the name and the length in lines of each function in the text of a formatted source
/// file. A function ends at the first closing brace that has the indentation of the line with `fn`.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let Some(at) = line.find("fn ").filter(|_| line.trim_end().ends_with(['{', '('])) else {
            continue;
        };
        let name: String =
            line[at + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let close = format!("{}}}", " ".repeat(indent));
        if let Some(length) = lines[start..].iter().position(|line| *line == close) {
            found.push((name, length + 1));
        }
    }
    found
}
