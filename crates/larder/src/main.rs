//! The `larder` binary: dispatches the command line and chooses the exit code.

mod allocator;
mod check;
mod ctl;
mod logging;
mod serve;
mod top;

use larder_bench::{complain, say, terminal};
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{ArgMatches, Command, FromArgMatches, Subcommand};
use larder_server::settings::{self, Environment, Flavor, MEMCACHED_VERSION, memcached_help};

/// Exit code: the command failed. This includes arguments that only a subcommand checks, such as
/// the address of a server.
const FAILED: u8 = 1;
/// Exit code: the command line, the environment or the configuration file is wrong.
const USAGE: u8 = 2;
/// Exit code: the server could not start.
const NOT_STARTED: u8 = 3;

fn main() -> ExitCode {
    allocator::give_back_buffers();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if is_memcached(&arguments) {
        return memcached(&arguments);
    }
    let matches = match command().try_get_matches_from(&arguments) {
        Ok(matches) => matches,
        Err(error) => return explain(&error),
    };
    match matches.subcommand() {
        Some(("serve", matches)) if matches.get_flag(settings::SHORT_HELP) => {
            terminal::say(format_args!("{}", settings::short_help()));
            said()
        }
        Some(("serve", matches)) => serve(Flavor::Larder, matches),
        Some(("bench", matches)) => bench(matches),
        Some(("check", matches)) => check::run(matches),
        Some(("ctl", matches)) => report(ctl::run(matches)),
        Some(("top", matches)) => report(top::run(matches)),
        // The parser rejects all other commands.
        _ => ExitCode::from(USAGE),
    }
}

fn command() -> Command {
    let bench = larder_bench::Command::augment_subcommands(Command::new("bench"))
        .about("Measure Larder and other servers")
        .subcommand_required(true)
        .arg_required_else_help(true);
    Command::new("larder")
        .version(env!("CARGO_PKG_VERSION"))
        .about("A memcached-compatible server")
        .after_help(
            "Without arguments, `larder serve` listens on 127.0.0.1:11211.\n\n\
             Exit codes: 0 done, 1 failed, 2 wrong command line or settings, 3 could not start;\n\
             `larder check` has its own",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(settings::command())
        .subcommand(bench)
        .subcommand(check::command())
        .subcommand(ctl::command())
        .subcommand(top::command())
}

/// Prints clap's message. Returns [`USAGE`] for an error, and 0 for a request for help or the
/// version.
fn explain(error: &clap::Error) -> ExitCode {
    // If the message cannot be printed, there is nowhere else to report that.
    let _ = error.print();
    ExitCode::from(if error.use_stderr() { USAGE } else { 0 })
}

/// Returns true if the program was started through a link named `memcached` or `memcached-debug`.
/// memcached's tests use the second name for debug builds.
fn is_memcached(arguments: &[OsString]) -> bool {
    let program = arguments.first().map(Path::new).and_then(Path::file_name);
    program.is_some_and(|name| name == "memcached" || name == "memcached-debug")
}

fn memcached(arguments: &[OsString]) -> ExitCode {
    let matches = match settings::memcached_command().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => return explain(&error),
    };
    if let Err(error) = settings::check_refused(&matches) {
        complain!("error: {error}");
        return ExitCode::from(USAGE);
    }
    if matches.get_flag("help") {
        terminal::say(format_args!("{}", memcached_help()));
    } else if matches.get_flag("version") {
        say!("memcached {MEMCACHED_VERSION}");
    } else if matches.get_flag("license") {
        say!("This is Larder {}, licence: Apache-2.0", env!("CARGO_PKG_VERSION"));
    } else {
        return serve(Flavor::Memcached, &matches);
    }
    said()
}

/// Returns the exit code of a command that has done its work: success, or [`FAILED`] if some of its
/// output could not be written.
fn said() -> ExitCode {
    match terminal::lost() {
        false => ExitCode::SUCCESS,
        true => {
            complain!("error: the standard output takes no more");
            ExitCode::from(FAILED)
        }
    }
}

fn serve(flavor: Flavor, matches: &ArgMatches) -> ExitCode {
    // The thread that handles signals keeps `load` for the life of the process, so `load` owns
    // copies of its inputs.
    let (matches, environment) = (matches.clone(), Environment::of_process());
    let load = move || settings::from_matches(flavor, &matches, &environment);
    match load() {
        Ok(settings) => serve::run(settings, load),
        Err(error) => {
            complain!("error: {error}");
            ExitCode::from(USAGE)
        }
    }
}

fn bench(matches: &ArgMatches) -> ExitCode {
    match larder_bench::Command::from_arg_matches(matches) {
        Ok(command) => report(command.run()),
        Err(error) => explain(&error),
    }
}

fn report<E: std::fmt::Display>(result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => said(),
        Err(error) => {
            complain!("error: {error}");
            ExitCode::from(FAILED)
        }
    }
}
