//! Behaviour that only a separate process can show: signals, sockets that a service manager hands
//! over, exit codes. Runs the real binary.

mod harness;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use harness::{BINARY, Folder, PATIENCE, Process, ask, assert_within_budget, connect, serve};

/// Builds a command that starts the binary as a service manager does, with `listener` as descriptor
/// 3.
fn activated(listener: &TcpListener, count: &str, more: &[&str]) -> Command {
    let socket = OwnedFd::from(listener.try_clone().expect("a descriptor"));
    let script =
        format!("exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS={count} exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, BINARY, "serve", "--admin", "off", "-t", "2"]);
    command.args(more).stdin(Stdio::from(socket));
    command
}

#[test]
fn sockets_of_a_service_manager_are_served_and_left_to_the_next_process() {
    for io in ["epoll", "auto"] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        for round in 0..2 {
            // No server runs at this moment. The connection must wait in the socket's accept queue.
            let mut early = connect(&address);
            let mut process = Process::spawn(&mut activated(&listener, "1", &["--io", io]));
            assert!(process.event("listening").ends_with(&format!("address={address}")));
            ask(&mut early, "set k 0 0 1\r\nv\r\n", "STORED\r\n");
            process.signal("-TERM");
            let (code, log) = process.end();
            assert_eq!(code, Some(0), "{io} {round}: {log}");
        }
    }
}

#[test]
fn sockets_that_cannot_be_served_are_an_error_and_those_of_others_are_left_alone() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    // `LISTEN_FDS=2` announces the descriptors 3 and 4, but 4 is not open. The server must ignore 4
    // and serve 3.
    let mut process = Process::spawn(&mut activated(&listener, "2", &[]));
    process.event("listening");
    process.signal("-TERM");
    assert_eq!(process.end().0, Some(0));

    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    let mut command = Command::new("sh");
    let script = "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\"";
    command.args(["-c", script, BINARY, "serve", "--admin", "off"]);
    let (code, log) = Process::spawn(command.stdin(Stdio::from(OwnedFd::from(client)))).end();
    assert_eq!(code, Some(3), "{log}");
    assert!(log.contains("descriptor 3 of the service manager is not a listening"), "{log}");

    // `LISTEN_PID` names another process, so the server must leave the sockets alone and listen as
    // its settings say.
    let mut process = Process::spawn(serve().env("LISTEN_PID", "1").env("LISTEN_FDS", "1"));
    process.event("listening");
}

#[test]
fn a_reload_applies_changeable_settings_and_names_the_others() {
    let folder = Folder::new("reload");
    let file = folder.0.join("larder.toml");
    fs::write(&file, "memory = 64\n").expect("a file");
    let mut command = serve();
    let mut process = Process::spawn(command.arg("--config").arg(&file));
    let listening = process.event("listening");
    let address = listening.rsplit_once("address=").expect("it says where").1.to_owned();
    process.event("serving");

    fs::write(&file, "memory = 80\nlog-format = 'json'\nlog-level = 'debug'\n").expect("a file");
    process.signal("-HUP");
    let line = process.event("reloaded");
    assert!(line.contains("memory 64MB -> 80MB"), "{line}");
    assert!(line.contains("log level info -> debug"), "{line}");
    assert!(line.contains("needs_restart=\"log-format logfmt -> json\""), "{line}");
    let mut client = connect(&address);
    client.write_all(b"stats\r\n").expect("it reads");
    let mut reply = String::new();
    let mut lines = BufReader::new(client);
    while !reply.ends_with("END\r\n") {
        assert!(lines.read_line(&mut reply).expect("it answers") > 0, "{reply}");
    }
    assert!(reply.contains("STAT limit_maxbytes 83886080\r\n"), "{reply}");

    fs::write(&file, "memory = 'much'\n").expect("a file");
    process.signal("-HUP");
    let line = process.event("reload_failed");
    assert!(line.contains("memory: \\\"much\\\" is not a size"), "{line}");
    ask(&mut connect(&address), "mn\r\n", "MN\r\n");
}

#[test]
fn a_file_with_a_bad_policy_changes_nothing() {
    let folder = Folder::new("policies");
    let file = folder.0.join("larder.toml");
    let logins = "[[limit]]\nname = 'logins'\nbudget = 5\nwindow = '60s'\n";
    fs::write(&file, logins).expect("a file");
    let mut command = serve();
    let mut process = Process::spawn(command.arg("--config").arg(&file));
    process.event("serving");

    let changed = logins.replace("60s", "1h");
    let bad = format!("memory = 80\n{changed}[[limit]]\nname = 'api'\nbudegt = 1\n");
    fs::write(&file, &bad).expect("a file");
    process.signal("-HUP");
    let line = process.event("reload_failed");
    let expected =
        "line 8: limit \\\"api\\\": there is no key \\\"budegt\\\": did you mean \\\"budget\\\"?";
    assert!(line.contains(expected), "{line}");

    fs::write(&file, bad.replace("budegt", "budget")).expect("a file");
    process.signal("-HUP");
    let line = process.event("reloaded");
    assert!(line.contains("memory 64MB -> 80MB"), "{line}");
    let expected = "limit api none -> fixed 1, limit logins fixed 5 per 60s -> fixed 5 per 3600s";
    assert!(line.contains(expected), "{line}");
}

/// A reload signal during the start must take effect after the start. The pid file is a named pipe,
/// so the start blocks when it opens this file, until the test reads from the pipe.
#[test]
fn a_reload_during_the_start_takes_effect_after_it() {
    let folder = Folder::new("early");
    let (file, pidfile) = (folder.0.join("larder.toml"), folder.0.join("pid"));
    fs::write(&file, "slab-min-size = 48\n").expect("a file");
    assert!(Command::new("mkfifo").arg(&pidfile).status().expect("it is there").success());
    let mut command = serve();
    let mut process =
        Process::spawn(command.arg("--config").arg(&file).arg("--pidfile").arg(&pidfile));
    process.event("setting_ignored");
    fs::write(&file, "memory = 80\n").expect("a file");
    process.signal("-HUP");
    process.signal("-HUP");
    fs::read(&pidfile).expect("the process number");
    process.event("serving");
    assert!(process.event("reloaded").contains("memory 64MB -> 80MB"));
    process.signal("-TERM");
    process.event("stopped");
    process.child.wait().expect("it ends");
    assert!(pidfile.exists(), "a pipe is not the server's to remove");
}

#[test]
fn the_verbosity_command_sets_the_level_of_the_running_log() {
    let mut process = Process::spawn(serve().args(["--log-level", "warn"]));
    // At this log level the server does not log the address that it listens on, so the test asks
    // the kernel for it.
    let address = listening_address(process.child.id());
    let mut client = connect(&address);
    ask(&mut client, "verbosity 1\r\n", "OK\r\n");
    process.signal("-HUP");
    let line = {
        // The reload has set the level back to `warn`, so the stop is not logged.
        process.signal("-TERM");
        let mut rest = String::new();
        process.log.read_to_string(&mut rest).expect("the log is text");
        rest
    };
    assert!(!line.contains("event=stopped"), "{line}");

    let mut process = Process::spawn(serve().args(["--log-level", "warn"]));
    let mut client = connect(&listening_address(process.child.id()));
    ask(&mut client, "verbosity 1\r\n", "OK\r\n");
    process.signal("-TERM");
    process.event("draining");
    process.event("stopped");
}

/// Waits until a process listens on TCP, and returns the address.
fn listening_address(pid: u32) -> String {
    let begun = Instant::now();
    loop {
        let sockets: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten()
            .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
            .filter_map(|link| {
                Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
            })
            .collect();
        let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
        for line in table.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if fields[3] == "0A" && sockets.iter().any(|inode| inode == fields[9]) {
                let port = fields[1].rsplit_once(':').expect("address and port").1;
                let port = u16::from_str_radix(port, 16).expect("a port");
                return format!("127.0.0.1:{port}");
            }
        }
        assert!(begun.elapsed() < PATIENCE, "it does not listen");
        std::thread::yield_now();
    }
}

#[test]
fn a_half_sent_command_does_not_delay_a_stop() {
    for io in ["epoll", "auto"] {
        let mut process = Process::spawn(serve().args(["--drain-timeout", "1h", "--io", io]));
        let listening = process.event("listening");
        let address = listening.rsplit_once("address=").expect("it says where").1;
        let mut line = connect(address);
        ask(&mut line, "mn\r\nget half", "MN\r\n");
        let mut body = connect(address);
        ask(&mut body, "mn\r\nset k 0 0 1000\r\nhalf", "MN\r\n");
        let mut large = connect(address);
        ask(&mut large, "mn\r\nset k 0 0 900000\r\nhalf", "MN\r\n");
        process.signal("-TERM");
        let mut rest = Vec::new();
        for client in [&mut line, &mut body, &mut large] {
            // The server must close or reset the connection without an answer.
            let _ = client.read_to_end(&mut rest);
        }
        assert!(rest.is_empty());
        assert_eq!(process.end().0, Some(0));
    }
}

#[test]
fn refused_flags_are_refused_before_help_and_version_too() {
    let folder = Folder::new("refused");
    let memcached = folder.0.join("memcached");
    std::os::unix::fs::symlink(BINARY, &memcached).expect("a link");
    let run = |flags: &[&str]| -> Output {
        Command::new(&memcached).args(flags).output().expect("the binary starts")
    };
    let refused: [&[&str]; 4] = [
        &["--enable-ssl", "--version"],
        &["-S", "-h"],
        &["-o", "ssl_ca_cert=/c", "-V", "-Z"],
        &["-vZV"],
    ];
    for flags in refused {
        let output = run(flags);
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
        assert!(output.stdout.is_empty(), "{flags:?}");
    }
    // Arguments after the version flag must be ignored.
    for flags in [&["-p", "11211", "--version"][..], &["-V", "-Z"], &["-V", "-o", "ssl_ca_cert=/c"]]
    {
        assert_eq!(run(flags).stdout, b"memcached 1.6.45\n", "{flags:?}");
    }
}

/// A standard error output that accepts nothing.
#[derive(Clone, Copy, Debug)]
enum Deaf {
    FullDisk,
    ReaderIsGone,
    Closed,
}

/// Returns the exit code of the binary when its standard error output accepts nothing.
fn unheard(deaf: Deaf, arguments: &str) -> Option<i32> {
    let closed = if matches!(deaf, Deaf::Closed) { "2>&-" } else { "" };
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec \"$0\" {arguments} {closed}"), BINARY]);
    command.stdout(Stdio::null()).stderr(match deaf {
        Deaf::FullDisk => fs::File::create("/dev/full").expect("it is there").into(),
        Deaf::ReaderIsGone => Stdio::from(std::io::pipe().expect("a pipe").1),
        Deaf::Closed => Stdio::inherit(),
    });
    command.status().expect("a shell").code()
}

#[test]
fn the_exit_code_is_right_even_if_the_message_cannot_be_written() {
    let folder = Folder::new("unheard");
    let nowhere = folder.0.join("no/such/directory/store");
    let fails = format!("serve --listen 127.0.0.1:0 --admin off --store {}", nowhere.display());
    for deaf in [Deaf::FullDisk, Deaf::ReaderIsGone, Deaf::Closed] {
        assert_eq!(unheard(deaf, "serve --memory much"), Some(2), "{deaf:?}");
        assert_eq!(unheard(deaf, "serve --no-such-flag"), Some(2), "{deaf:?}");
        assert_eq!(unheard(deaf, &fails), Some(3), "{deaf:?}");
        assert_eq!(unheard(deaf, &format!("{fails} -d")), Some(3), "{deaf:?}");
        assert_eq!(unheard(deaf, &format!("check {}", nowhere.display())), Some(3), "{deaf:?}");
        assert_eq!(unheard(deaf, "ctl ping --server 127.0.0.1:1"), Some(1), "{deaf:?}");
    }
}

#[test]
fn unwritable_log_lines_do_not_end_the_server() {
    for deaf in ["2>/dev/full", "2>&-"] {
        let mut command = Command::new("sh");
        let script = format!("exec \"$0\" serve -l 127.0.0.1:0 --admin off -t 2 -vv {deaf}");
        let mut process = Process::spawn(command.args(["-c", &script, BINARY]));
        let mut client = connect(&listening_address(process.child.id()));
        ask(&mut client, "set k 0 0 1\r\nv\r\nnonsense\r\n", "STORED\r\nERROR\r\n");
        process.signal("-HUP");
        ask(&mut client, "verbosity 2\r\nmn\r\n", "OK\r\nMN\r\n");
        process.signal("-TERM");
        assert_eq!(process.child.wait().expect("it ends").code(), Some(0), "{deaf}");
    }
}

#[test]
fn an_unwritable_result_is_an_error_without_a_crash() {
    let mut process = Process::spawn(&mut serve());
    let listening = process.event("listening");
    let address = listening.rsplit_once("address=").expect("it says where").1;
    let run = |script: &str| {
        let script = format!("\"$0\" ctl stats --server {address} {script}");
        Command::new("sh").args(["-c", &script, BINARY]).output().expect("a shell")
    };
    let full = run(">/dev/full");
    assert_eq!(full.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&full.stderr).contains("takes no more"));
    // A closed pipe is not an error: its reader has read all the lines that it wants.
    let cut = run("| head -1");
    assert!(cut.stderr.is_empty(), "{}", String::from_utf8_lossy(&cut.stderr));
}

#[test]
fn the_log_names_the_promises_at_start_and_the_signal_at_the_end() {
    let folder = Folder::new("promises");
    let store = format!("{}:16MB", folder.0.join("store").display());
    for (signal, flags, created) in
        [("INT", &["--durability", "sync"][..], true), ("USR1", &["--when-full", "refuse"], false)]
    {
        let mut process = Process::spawn(serve().args(["--store", &store]).args(flags));
        if created {
            assert!(process.event("store_created").contains("bytes=16777216"));
        }
        let line = process.event("serving");
        for promise in ["store_bytes=16777216", "lanes=1", flags[1]] {
            assert!(line.contains(promise), "{promise}: {line}");
        }
        process.signal(&format!("-{signal}"));
        assert!(process.event("stopping").contains(&format!("reason=SIG{signal}")));
        assert_eq!(process.end().0, Some(0));
    }
    let mut process = Process::spawn(serve().args(["--store", &store]));
    process.event("serving");
    process.signal("-KILL");
    process.end();
    let mut process = Process::spawn(serve().args(["--store", &store]));
    let line = process.event("unclean_stop");
    assert!(line.contains("may_be_missing=") && line.contains("--sync-interval"), "{line}");
}

#[test]
fn client_errors_are_logged_as_one_line_with_a_count() {
    let mut process =
        Process::spawn(serve().args(["--max-connections", "20", "--when-full", "refuse"]));
    let listening = process.event("listening");
    let address = listening.rsplit_once("address=").expect("it says where").1.to_owned();
    let mut client = connect(&address);
    ask(&mut client, "mn\r\n", "MN\r\n");

    connect(&address).write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("it reads");
    let line = process.event("http_on_data_port");
    assert!(line.contains("count=1") && line.contains("--admin"), "{line}");

    let large = "v".repeat(2_000_000);
    client.write_all(format!("set k 0 0 2000000\r\n{large}\r\n").as_bytes()).expect("it reads");
    let mut reply = BufReader::new(client.try_clone().expect("a descriptor"));
    let mut text = String::new();
    reply.read_line(&mut text).expect("it answers");
    assert_eq!(text, "SERVER_ERROR object too large for cache\r\n");
    let line = process.event("items_too_large");
    assert!(line.contains("count=1") && line.contains("--max-item-size"), "{line}");

    let value = "v".repeat(100_000);
    let mut refused = 0;
    for number in 0..2000 {
        client
            .write_all(format!("set k{number} 0 0 100000\r\n{value}\r\n").as_bytes())
            .expect("it reads");
        text.clear();
        reply.read_line(&mut text).expect("it answers");
        refused += u32::from(text.starts_with("SERVER_ERROR out of memory"));
        if refused == 100 {
            break;
        }
    }
    let line = process.event("writes_refused");
    assert!(line.contains("advice=") && line.contains("--when-full"), "{line}");
    client.write_all(b"stats\r\n").expect("it reads");
    let health = reply.lines().map_while(Result::ok).find(|line| line.contains("larder_health"));
    assert_eq!(health.as_deref(), Some("STAT larder_health full: writes are refused"));

    let many: Vec<TcpStream> = (0..40).map(|_| connect(&address)).collect();
    let line = process.event("connections_rejected");
    assert!(line.contains("--max-connections"), "{line}");
    drop(many);
}

#[test]
fn a_log_file_is_appended_to_in_the_background_and_after_a_rotation() {
    let folder = Folder::new("log-file");
    let (log, pidfile, port) = (folder.0.join("log"), folder.0.join("pid"), folder.0.join("port"));
    let mut command = serve();
    command.env("MEMCACHED_PORT_FILENAME", &port).arg("-d");
    command.arg("--log-file").arg(&log).arg("-P").arg(&pidfile);
    assert!(command.status().expect("it starts").success());
    assert!(fs::read_to_string(&log).expect("a log").contains("event=serving"));
    let pid = fs::read_to_string(&pidfile).expect("a number");
    let signal = |name: &str| {
        Command::new("kill").args([name, pid.trim()]).status().expect("kill is there");
    };
    fs::rename(&log, folder.0.join("old")).expect("it is there");
    signal("-HUP");
    let begun = Instant::now();
    let until = |text: &str| loop {
        if fs::read_to_string(&log).is_ok_and(|log| log.contains(text)) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "no {text}");
        std::thread::yield_now();
    };
    until("event=reloaded");

    // Another server must not overwrite the pid file, and must say which process owns it.
    let (code, text) = Process::spawn(serve().arg("-P").arg(&pidfile)).end();
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains(&format!("process {} runs", pid.trim())), "{text}");
    assert_eq!(fs::read_to_string(&pidfile).expect("a number"), pid);
    signal("-KILL");
    // The kernel releases the killed process's lock on its pid file a moment after the process has
    // ended.
    while fs::File::open(&pidfile).expect("it stays").try_lock().is_err() {
        assert!(begun.elapsed() < PATIENCE, "it does not end");
        std::thread::yield_now();
    }
    // A server must replace the pid file of a process that was killed.
    let mut process = Process::spawn(serve().arg("-P").arg(&pidfile));
    process.event("serving");
    assert_ne!(fs::read_to_string(&pidfile).expect("a number"), pid);

    let nowhere = folder.0.join("none/log");
    let (code, text) = Process::spawn(serve().arg("--log-file").arg(&nowhere)).end();
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("cannot write --log-file"), "{text}");
}

/// The server must print the token that it made to stderr, once. The log file must not contain the
/// token, and neither must JSON lines, which go to a log collector.
#[test]
fn the_token_of_the_admin_page_is_printed_but_not_logged() {
    const TOLD: &str = "token for changes on the admin page, until the stop: ";
    let folder = Folder::new("token");
    let log = folder.0.join("log");
    let start = |more: &[&str]| {
        let mut command = serve();
        command.args(["--admin", "127.0.0.1:0"]).arg("--log-file").arg(&log).args(more);
        let process = Process::spawn(&mut command);
        let begun = Instant::now();
        while !fs::read_to_string(&log).is_ok_and(|log| log.contains("serving")) {
            assert!(begun.elapsed() < PATIENCE, "it does not serve");
            std::thread::yield_now();
        }
        process.signal("-TERM");
        let (code, said) = process.end();
        assert_eq!(code, Some(0), "{said}");
        let logged = fs::read_to_string(&log).expect("a log");
        fs::remove_file(&log).expect("it is there");
        assert!(!logged.contains(TOLD), "{logged}");
        (said, logged)
    };
    let (said, logged) = start(&[]);
    let token = said.trim_end().strip_prefix(TOLD).expect("it prints the token and nothing else");
    assert!(token.len() == 40 && !logged.contains(token), "{said}");
    let (said, logged) = start(&["--log-format", "json"]);
    assert!(said.is_empty() && logged.contains("\"admin_token_hidden\""), "{said}{logged}");
    let file = folder.0.join("token");
    fs::write(&file, "token-of-a-file-000000\n").expect("a file");
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .expect("it is ours");
    let (said, logged) = start(&["--admin-token-file", file.to_str().expect("a name")]);
    assert!(said.is_empty() && !logged.contains("token-of-a-file-000000"), "{said}{logged}");
}

#[test]
fn the_soft_limit_of_open_files_is_raised_and_a_low_hard_limit_is_reported() {
    let mut command = Command::new("sh");
    let script = "ulimit -S -n 40; exec \"$0\" serve -l 127.0.0.1:0 --admin off -t 2";
    let mut process = Process::spawn(command.args(["-c", script, BINARY]));
    process.event("serving");
    let limits = fs::read_to_string(format!("/proc/{}/limits", process.child.id()));
    let limits = limits.expect("it runs");
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    let numbers: Vec<&str> = line.split_whitespace().skip(3).take(2).collect();
    assert_eq!(numbers[0], numbers[1], "{line}");
    drop(process);

    // A server that runs as root may raise the hard limit as well as the soft one. So the script
    // starts the server without the capability `CAP_SYS_RESOURCE`, which allows that.
    let mut command = Command::new("sh");
    let script = "ulimit -n 64; exec setpriv --bounding-set=-sys_resource --inh-caps=-sys_resource \
                  \"$0\" serve -l 127.0.0.1:0 --admin off -t 2";
    let (code, log) = Process::spawn(command.args(["-c", script, BINARY])).end();
    assert_eq!(code, Some(3), "{log}");
    assert!(log.contains("limit of open files") && log.contains("ulimit -n"), "{log}");
}

#[test]
fn unwise_settings_cause_warnings() {
    let folder = Folder::new("unwise");
    let store = format!("{}:4MB", folder.0.join("store").display());
    let mut process = Process::spawn(serve().args(["--store", &store, "--memory", "32MB"]));
    assert!(process.event("store_smaller_than_memory").contains("memory=33554432"));
    process.event("serving");
    process.signal("-TERM");
    assert_eq!(process.end().0, Some(0));
    let mut process = Process::spawn(serve().args(["--store", &store, "--forget", "7"]));
    assert!(process.event("nothing_to_forget").contains("lane=7"));

    let mut process = Process::spawn(serve().args(["--memory", "9000GB"]));
    assert!(process.event("memory_exceeds_machine").contains("machine="));

    let shared = std::path::Path::new("/dev/shm");
    let mounts = fs::read_to_string("/proc/mounts").expect("it is there");
    if mounts.lines().any(|line| line.contains(" /dev/shm tmpfs ")) {
        let path = shared.join(format!("larder-unwise-{}", std::process::id()));
        let store = format!("{}:4MB", path.display());
        let mut process = Process::spawn(serve().args(["--store", &store]));
        let line = process.event("store_in_memory");
        drop(process);
        fs::remove_file(path).expect("a store");
        assert!(line.contains("tmpfs"), "{line}");
    }
}

/// Regression test. The kernel does not discard the contents of locked memory when the server frees
/// it. In an earlier version, a new index table in such memory contained the old items.
#[test]
fn flushed_items_do_not_return_when_memory_is_locked() {
    let mut process = Process::spawn(serve().args(["--lock-memory", "-m", "64"]));
    let listening = process.event("listening");
    let mut client = connect(listening.rsplit_once("address=").expect("it says where").1);
    let sets = |prefix: &str| -> String {
        (0..1000).map(|n| format!("set {prefix}{n} 0 0 1 noreply\r\nv\r\n")).collect()
    };
    let gets: String = (0..1000).map(|n| format!("get old{n}\r\n")).collect();
    for round in 0..5 {
        client.write_all(sets("old").as_bytes()).expect("it listens");
        ask(&mut client, "flush_all\r\n", "OK\r\n");
        // The cleaner frees the index tables that the flush has emptied, and new tables reuse their
        // memory. No old item may reappear in them.
        client.write_all(sets(&format!("new{round}-")).as_bytes()).expect("it listens");
        ask(&mut client, &gets, &"END\r\n".repeat(1000));
    }
    // Memory that is reserved but unused must not be resident, even though memory is locked.
    assert_within_budget(&process.child, 64);
}

#[test]
fn a_check_refuses_a_file_that_is_not_a_store() {
    let output = Command::new(BINARY).args(["check", "/etc/passwd"]).output().expect("it starts");
    assert_eq!(output.status.code(), Some(3));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("something on it that is not a store"), "{error}");
}

#[test]
fn an_interrupted_measurement_reports_its_results() {
    let mut process = Process::spawn(&mut serve());
    let listening = process.event("listening");
    let address = listening.rsplit_once("address=").expect("it says where").1;
    for signal in ["-INT", "-TERM"] {
        let mut command = Command::new(BINARY);
        command.args(["bench", "load", "--server", address, "--time", "3600", "--warm-up", "0"]);
        let mut bench = Process::spawn(command.stdout(Stdio::piped()));
        // Waits for the progress line of the first second.
        let mut line = String::new();
        bench.log.read_line(&mut line).expect("text");
        assert!(line.contains("requests/s"), "{line}");
        bench.signal(signal);
        let mut summary = String::new();
        let stdout = bench.child.stdout.as_mut().expect("it is piped");
        stdout.read_to_string(&mut summary).expect("text");
        assert!(summary.contains("latency") && !summary.contains("over 3600"), "{summary}");
        assert_eq!(bench.end().0, Some(0));
    }
}
