//! Runs programs to their end, for example to ask for a version. Each program has a time limit. If
//! the lab ends first, the program is killed, as servers are.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use super::{POLL_INTERVAL, Processes};
use crate::{Error, Result};

/// The largest part of each output that is kept, in bytes. A program that prints more gets an error
/// from its next write.
const OUTPUT_MAX: u64 = 1 << 20;
/// The longest time to wait, after the processes of a program were killed, until its outputs are
/// closed.
const CLOSING: Duration = Duration::from_secs(2);

/// Runs a program with `input` as its standard input, and returns its outputs. Afterwards,
/// processes that the program left in its process group are killed.
///
/// # Errors
/// Returns an error if the program cannot be started, if it does not end within `limit`, or if a
/// signal ends the lab meanwhile.
pub(crate) fn output(
    mut command: Command,
    input: &'static [u8],
    limit: Duration,
) -> Result<Output> {
    let program = PathBuf::from(command.get_program());
    let program = program.display();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut processes = Processes::start(command, None)
        .map_err(|e| Error::io(format!("cannot start {program}"), e))?;
    let stdin = processes.server.stdin.take();
    thread::spawn(move || {
        // A write error is ignored: a program may end without reading its input.
        stdin.map(|mut stdin| stdin.write_all(input))
    });
    let stdout = collect(processes.server.stdout.take());
    let stderr = collect(processes.server.stderr.take());
    let Some(status) = processes.wait(limit, POLL_INTERVAL, |_| {})? else {
        let seconds = limit.as_secs_f64();
        return Err(Error::server(format!("{program} did not end within {seconds} s")));
    };
    processes.kill();
    let received = |bytes: Receiver<Vec<u8>>| {
        bytes
            .recv_timeout(CLOSING)
            .map_err(|_| Error::server(format!("{program} left a process with its output behind")))
    };
    Ok(Output { status, stdout: received(stdout)?, stderr: received(stderr)? })
}

/// Reads an output in a separate thread. If one thread read both outputs, it could wait for one
/// pipe while the program waits because the other pipe is full.
fn collect(output: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // A read error is ignored: the bytes before it may explain why the program failed.
        let _ = output.map(|output| output.take(OUTPUT_MAX).read_to_end(&mut bytes));
        let _ = sender.send(bytes);
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::tree;
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str, input: &'static [u8], limit: Duration) -> Result<Output> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        output(command, input, limit)
    }

    #[test]
    fn a_program_gets_input_and_returns_both_outputs() {
        let output = shell("cat; echo no >&2; exit 3", b"yes", LONG).unwrap();
        assert_eq!(
            (output.stdout.as_slice(), output.stderr.as_slice()),
            (&b"yes"[..], &b"no\n"[..])
        );
        assert_eq!(output.status.code(), Some(3));
        let nowhere = output_of_nothing().unwrap_err().to_string();
        assert!(nowhere.contains("cannot start /nowhere/program"), "{nowhere}");
    }

    fn output_of_nothing() -> Result<Output> {
        output(Command::new("/nowhere/program"), b"", LONG)
    }

    #[test]
    fn a_program_that_hangs_is_killed() {
        let started = Instant::now();
        let limit = Duration::from_millis(300);
        let error = shell("sleep 1000 & sleep 1000", b"", limit).unwrap_err().to_string();
        assert!(error.contains("sh did not end within 0.3 s"), "{error}");
        assert!(started.elapsed() < LONG);
    }

    #[test]
    fn a_process_that_a_program_leaves_behind_is_killed() {
        let output = shell("sleep 1000 & echo $!", b"", LONG).unwrap();
        let pid = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        assert!(tree::member(pid).is_none_or(|member| member.ended));
    }

    #[test]
    fn an_endless_output_is_cut_off() {
        let output = shell("yes", b"", LONG).unwrap();
        assert_eq!(output.stdout.len() as u64, OUTPUT_MAX);
    }
}
