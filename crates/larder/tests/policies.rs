//! Policies of rate limits: the command `larder ctl limits`, and reloads. Runs the real binary.

mod harness;

use std::fs;
use std::process::Command;

use harness::{BINARY, Folder, Server, serve};

const FILE: &str = "\
[[limit]]
name = 'logins'
prefix = 'login/'
budget = 5
window = '1h'

[[limit]]
name = 'api:v1'
budget = 2
algorithm = 'gcra'
window = '1d'
shadow = true
";

/// Runs `larder ctl limits`, and returns its exit code and output.
fn limits(server: &Server, arguments: &str) -> (Option<i32>, String) {
    let mut command = Command::new(BINARY);
    command.args(["ctl", "limits", "--server", &server.address]);
    let output = command.args(arguments.split_whitespace()).output().expect("the binary starts");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}

fn done(server: &Server, arguments: &str, expected: &str) {
    assert_eq!(limits(server, arguments), (Some(0), format!("{expected}\n")), "{arguments}");
}

fn refused(server: &Server, arguments: &str, reason: &str) {
    let (code, said) = limits(server, arguments);
    assert!(code == Some(1) && said.contains(reason), "{arguments}: {code:?} {said}");
}

fn start(folder: &Folder, file: &str) -> Server {
    let path = folder.0.join("larder.toml");
    fs::write(&path, file).expect("a file");
    let store = format!("{}:64MB", folder.0.join("store").display());
    Server::spawn(serve().args(["--store", &store, "--config"]).arg(path))
}

#[test]
fn policies_are_listed_and_limiters_tried_and_reset() {
    let folder = Folder::new("limits-ctl");
    let server = start(&folder, FILE);
    done(&server, "look logins login/ann", "5 left, as new");
    done(&server, "try logins login/ann", "allowed: 4 left, as new in 3600 s");
    // The replies below contain times that depend on how long this test has run, so only their
    // beginnings are compared.
    for (request, expected) in [
        ("try logins login/ann --cost 4", "allowed: 0 left, as new in 3"),
        ("try logins login/ann", "refused: 0 left, passes in 3"),
        ("try logins login/ann --cost 6", "refused: 0 left, never passes, as new in 3"),
        ("look logins login/ann", "0 left, as new in 3"),
    ] {
        let (code, said) = limits(&server, request);
        assert!(code == Some(0) && said.starts_with(expected), "{request}: {code:?} {said}");
    }
    for _ in 0..3 {
        let (_, said) = limits(&server, "try api:v1 any");
        assert!(said.starts_with("allowed: "), "the policy is a shadow: {said}");
    }
    let (_, said) = limits(&server, "");
    let expected = "\
policy  prefix  limit                                within  near  over  shadow
api:v1          2 per 86400s, gcra, burst 2, shadow       1     1     0       1
logins  login/  5 per 3600s, fixed                        1     1     2       0
";
    assert_eq!(said, expected);

    done(&server, "reset login/ann", "login/ann is reset");
    done(&server, "reset login/ann", "login/ann has no used units");
    done(&server, "look logins login/ann", "5 left, as new");
    refused(
        &server,
        "try logons login/ann",
        "there is no policy \"logons\": larder ctl limits lists",
    );
    refused(&server, "try logins ann", "does not begin with the prefix of logins: write login/ann");
    let long = format!("try logins login/{}", "x".repeat(250));
    refused(&server, &long, "is no key: use 1 to 250 bytes, no spaces");
}

#[test]
fn used_units_and_counts_survive_a_reload() {
    let folder = Folder::new("limits-reload");
    let mut server = start(&folder, FILE);
    done(&server, "try logins login/ann --cost 5", "allowed: 0 left, as new in 3600 s");
    let file = FILE.replace("budget = 5", "budget = 7").replace("1h", "1m");
    fs::write(folder.0.join("larder.toml"), &file).expect("a file");
    server.process.signal("-HUP");
    let line = server.process.event("reloaded");
    let expected = "limit logins fixed 5 per 3600s prefix login/ -> fixed 7 per 60s prefix login/";
    assert!(line.contains(expected), "{line}");
    // The new budget applies at once. The new length of the window applies only from the key's next
    // window on.
    let (_, said) = limits(&server, "try logins login/ann");
    assert!(said.starts_with("allowed: 1 left, as new in 3"), "{said}");
    assert!(server.stats(" limits").contains("STAT limit:logins:near 2\r\n"));
    let (_, said) = limits(&server, "try logins login/bob");
    assert_eq!(said, "allowed: 6 left, as new in 60 s\n");
}

#[test]
fn a_server_without_policies_says_so() {
    let folder = Folder::new("limits-none");
    let server = start(&folder, "");
    done(&server, "", "there are no policies: write [[limit]] into the file of --config");
    refused(&server, "look logins k", "there is no policy \"logins\"");
}
