//! Tests of starts that are given only one of a store's devices, a device in a wrong role, or a
//! device twice. The server recognises each device by its contents. It must refuse, say how to
//! start, and change nothing on the devices. Runs the real binary.

mod harness;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use harness::{BINARY, Folder, Process, ask, connect, serve};

/// Words that no message may use, because the device that it names may hold data.
const DESTRUCTIVE: [&str; 4] = ["remove", "erase", "delete", "wipe"];

/// Starts a server with these values of `--store`, and checks its reply to a request.
fn serves(stores: &[String], request: &str, expected: &str) {
    let mut process = Process::spawn(&mut serving(stores));
    let listening = process.event("listening");
    let address = listening.rsplit_once("address=").expect("it says where").1.to_owned();
    process.event("serving");
    ask(&mut connect(&address), request, expected);
    process.signal("-TERM");
    assert_eq!(process.end().0, Some(0));
}

fn serving(stores: &[String]) -> Command {
    let mut command = serve();
    for store in stores {
        command.args(["--store", store]);
    }
    command
}

/// Starts a server with these values of `--store`, which it must refuse, and returns its message.
/// The message must not advise anything that destroys data.
fn refused(stores: &[String]) -> String {
    let (code, log) = Process::spawn(&mut serving(stores)).end();
    assert_eq!(code, Some(3), "{stores:?}: {log}");
    let error = log.lines().find(|line| line.starts_with("error: "));
    let error = error.unwrap_or_else(|| panic!("{stores:?}: {log}")).to_owned();
    assert_harmless(&error);
    error
}

fn assert_harmless(message: &str) {
    let destructive = DESTRUCTIVE.iter().any(|word| message.contains(word));
    assert!(!destructive, "advice that destroys data: {message}");
}

/// Returns the values of `--store` that a refusal advises.
fn obeyed(error: &str) -> Vec<String> {
    let (_, flags) = error.split_once("start with ").unwrap_or_else(|| panic!("{error}"));
    flags.split_whitespace().filter(|word| *word != "--store").map(str::to_owned).collect()
}

fn check(arguments: &[&Path]) -> Output {
    let mut command = Command::new(BINARY);
    command.arg("check").args(arguments).output().expect("the binary starts")
}

/// Formats a path for `--store`.
fn named(path: &Path, more: &str) -> String {
    format!("{}{more}", path.display())
}

/// Creates a store of two tiers with one item.
fn tiered(folder: &Folder) -> (PathBuf, PathBuf) {
    let (fast, big) = (folder.0.join("fast"), folder.0.join("big"));
    let stores = [named(&fast, ":32MB@fast"), named(&big, ":64MB@big")];
    serves(&stores, "set k 0 0 5\r\nvalue\r\n", "STORED\r\n");
    (fast, big)
}

const GET: (&str, &str) = ("get k\r\n", "VALUE k 0 5\r\nvalue\r\nEND\r\n");

#[test]
fn devices_in_any_wrong_role_are_refused_with_the_right_advice() {
    let folder = Folder::new("roles");
    let (fast, big) = tiered(&folder);
    let before = [fs::read(&fast).expect("a store"), fs::read(&big).expect("a store")];
    let right = [named(&fast, "@fast"), named(&big, "@big")];

    // The lower device alone: the message must say what this device is and which device is missing.
    let error = refused(&[named(&big, "")]);
    assert!(error.contains("is the lower device of lane 0 of a store"), "{error}");
    assert_eq!(obeyed(&error), ["ITS-FAST-DEVICE@fast".to_owned(), named(&big, "@big")]);
    // The fast device alone: the message must say so and name the missing lower device.
    let error = refused(&[named(&fast, "")]);
    assert!(error.contains("is the fast device of lane 0 of a store"), "{error}");
    assert_eq!(obeyed(&error), [named(&fast, "@fast"), "ITS-LOWER-DEVICE@big".to_owned()]);
    // For every wrong arrangement of both devices, the message must advise the right one.
    let swapped = [named(&big, ":64MB@fast"), named(&fast, "@big")];
    let error = refused(&swapped);
    assert_eq!(obeyed(&error), [named(&fast, "@fast"), named(&big, ":64MB@big")], "{error}");
    for wrong in [[named(&big, ""), named(&fast, "")], [named(&fast, ""), named(&big, "")]] {
        let error = refused(&wrong);
        assert!(error.contains(&format!("{} is the lower device", big.display())), "{error}");
        assert_eq!(obeyed(&error), right, "{error}");
    }
    // One device of the store together with a path at which there is nothing. The server must not
    // create a file there.
    let new = folder.0.join("new");
    for wrong in [
        [named(&new, ":32MB@fast"), named(&big, "@big")],
        [named(&new, ":32MB@fast"), named(&fast, "@big")],
        [named(&big, "@fast"), named(&new, ":64MB@big")],
    ] {
        refused(&wrong);
        assert!(!new.exists(), "{wrong:?}");
    }
    let after = [fs::read(&fast).expect("a store"), fs::read(&big).expect("a store")];
    assert!(after == before, "a refusal changes nothing");
    serves(&right, GET.0, GET.1);
}

#[test]
fn a_check_recognises_a_device_in_a_wrong_role() {
    let folder = Folder::new("roles-check");
    let (fast, big) = tiered(&folder);
    let lower = Path::new("--lower");
    for (arguments, right) in [
        (&[&*big][..], format!("larder check ITS-FAST-DEVICE --lower {}", big.display())),
        (
            &[&*big, lower, &*fast],
            format!("larder check {} --lower {}", fast.display(), big.display()),
        ),
        (&[&*fast], "name it with --lower PATH".to_owned()),
        (&[&*fast, lower, &*fast], "this is the store itself".to_owned()),
    ] {
        let output = check(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{error}");
        assert!(error.contains(&right), "{arguments:?}: {error}");
        assert_harmless(&error);
    }
    assert_eq!(check(&[&fast, lower, &big]).status.code(), Some(0));
}

#[test]
fn a_start_with_one_lane_names_it_and_the_missing_one() {
    let folder = Folder::new("lanes-alone");
    let (a, b) = (folder.0.join("a"), folder.0.join("b"));
    let both = [named(&a, ":32MB"), named(&b, ":32MB")];
    serves(&both, "set k 0 0 5\r\nvalue\r\n", "STORED\r\n");
    let error = refused(&[named(&b, "")]);
    assert!(error.contains("lane 0 of the store is missing"), "{error}");
    assert!(error.contains(&format!("{} is lane 1", b.display())), "{error}");
    serves(&[named(&b, ""), named(&a, "")], GET.0, GET.1);
}

#[test]
fn a_device_that_is_given_twice_is_named() {
    let folder = Folder::new("twice");
    let link = folder.0.join("link");
    let error =
        refused(&[named(&folder.0, ":32MB"), named(&folder.0.join("larder.store"), ":32MB")]);
    assert!(error.contains("the same device twice"), "{error}");
    assert!(!folder.0.join("larder.store").exists());
    serves(&[named(&folder.0, ":32MB")], "mn\r\n", "MN\r\n");
    std::os::unix::fs::symlink(folder.0.join("larder.store"), &link).expect("a link");
    let error = refused(&[named(&folder.0, ""), named(&link, "")]);
    assert!(error.contains("the same device twice"), "{error}");
}

#[test]
fn a_file_that_is_not_a_store_is_refused_without_destructive_advice() {
    let folder = Folder::new("precious");
    let file = folder.0.join("photos");
    fs::write(&file, vec![b'x'; 2 << 20]).expect("a file");
    for wrong in [
        vec![named(&file, ":64MB")],
        vec![named(&folder.0.join("new"), ":32MB@fast"), named(&file, ":64MB@big")],
    ] {
        let error = refused(&wrong);
        assert!(error.contains("is not a store"), "{error}");
        assert_eq!(fs::read(&file).expect("a file"), vec![b'x'; 2 << 20]);
        assert!(!folder.0.join("new").exists());
    }
    let output = check(&[&file]);
    assert_harmless(&String::from_utf8_lossy(&output.stderr));
}
