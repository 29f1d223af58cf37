//! `larder check`: inspects a store that no server uses, and changes nothing. It reads everything
//! that a recovery may read, except the index image, and verifies its checksums. So it finds damage
//! that a start would not notice. It takes as long as reading the used part of the device.

mod keys;
mod reader;
mod report;
mod survey;
#[cfg(test)]
mod tests;

use larder_bench::{complain, terminal};
use std::fmt;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Arg, ArgAction, ArgMatches, Command};
use larder_disk::{Device, FILE_NAME, FileDevice, Joined, PathInfo};
use larder_log::format::content::HEAD;
use larder_log::format::tier::{LABEL_AREA, LABEL_BYTES};
use larder_log::format::{Content, Label, LabelError, SuperblockError};
use larder_log::recover::read_superblock;
use larder_server::machine_time;

/// Exit code: there is no store, or it cannot be read.
const UNREADABLE: u8 = 3;
/// Interval between two progress messages.
const INTERVAL: Duration = Duration::from_secs(1);

/// Returns the command line of `check`.
pub(crate) fn command() -> Command {
    Command::new("check")
        .about("Check a store for damage while no server uses it; this changes nothing")
        .arg(
            Arg::new("store")
                .value_name("PATH")
                .required(true)
                .value_parser(clap::value_parser!(PathBuf))
                .help("Directory, file or block device, as in --store but without size and tier"),
        )
        .arg(
            Arg::new("lower")
                .long("lower")
                .value_name("PATH")
                .value_parser(clap::value_parser!(PathBuf))
                .help("The slow device that belongs to PATH, if the store has two tiers"),
        )
        .arg(
            Arg::new("json")
                .long("json")
                .action(ArgAction::SetTrue)
                .help("Print the report as one JSON object"),
        )
        .after_help(
            "Exit codes:\n  \
             0  no damage, except damage that an earlier start has accepted\n  \
             1  the next start would drop data, but only data that was not acknowledged or,\n     \
             with --durability none, not promised to survive\n  \
             2  durable data is damaged\n  \
             3  no store, or a store that is unreadable, in use or of another version",
        )
}

/// The reason why there is no report.
#[derive(Debug)]
enum CheckError {
    Missing(PathBuf),
    Open(larder_disk::OpenError),
    Superblock(PathBuf, SuperblockError),
    LowerMissing(PathBuf),
    /// The operator gave the path of a lower device as the store. If `--lower` gave the path of its
    /// fast device, the third field has that path, so that the message can name both.
    IsLower(PathBuf, Label, Option<PathBuf>),
    Lower(PathBuf, LabelError),
    Twice(PathBuf),
    Read(PathBuf, io::Error),
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckError::Missing(path) => write!(f, "{}: there is no store", path.display()),
            CheckError::Open(error) => error.fmt(f),
            CheckError::Superblock(path, error) => write!(f, "{}: {error}", path.display()),
            CheckError::LowerMissing(path) => write!(
                f,
                "{}: the store goes on on a device of another tier: name it with --lower PATH",
                path.display()
            ),
            CheckError::IsLower(path, label, fast) => {
                let lane = label.lane.map_or(String::new(), |lane| format!(" {lane}"));
                write!(
                    f,
                    "{}: this is the lower device of lane{lane} of a store: ",
                    path.display()
                )?;
                let fast = fast
                    .as_ref()
                    .map_or("ITS-FAST-DEVICE".into(), |fast| fast.display().to_string());
                write!(f, "check both with larder check {fast} --lower {}", path.display())
            }
            CheckError::Twice(path) => write!(
                f,
                "{}: this is the store itself: --lower names its other device",
                path.display()
            ),
            CheckError::Lower(path, error) => write!(f, "{}: {error}", path.display()),
            CheckError::Read(path, error) => {
                write!(f, "{}: cannot be read: {error}", path.display())
            }
        }
    }
}

/// Checks the store named on the command line.
pub(crate) fn run(matches: &ArgMatches) -> ExitCode {
    let Some(path) = matches.get_one::<PathBuf>("store") else {
        return ExitCode::from(UNREADABLE);
    };
    match check(path, matches.get_one::<PathBuf>("lower").map(PathBuf::as_path)) {
        Ok(report) => {
            let text = match matches.get_flag("json") {
                // Serializing cannot fail: the report holds only numbers, strings and lists of
                // them.
                true => serde_json::to_string_pretty(&report).unwrap_or_default() + "\n",
                false => report.to_string(),
            };
            terminal::say(format_args!("{text}"));
            ExitCode::from(report.verdict.exit_code())
        }
        Err(error) => {
            complain!("error: {error}");
            ExitCode::from(UNREADABLE)
        }
    }
}

/// Opens the file or device of a store for reading only.
fn open(path: &Path) -> Result<(PathBuf, Arc<dyn Device>), CheckError> {
    let file = if path.is_dir() { path.join(FILE_NAME) } else { path.to_owned() };
    let length = match file.metadata() {
        Ok(metadata) if metadata.is_file() => Some(metadata.len()),
        Ok(_) => None,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(CheckError::Missing(file));
        }
        Err(error) => return Err(CheckError::Read(file, error)),
    };
    let info = PathInfo::at(&file).map_err(CheckError::Open)?;
    if Content::of(&info.head) == Content::Other {
        return Err(CheckError::Superblock(file, SuperblockError::NotAStore));
    }
    if length == Some(0) {
        return Err(CheckError::Superblock(file, SuperblockError::Empty));
    }
    let device = FileDevice::open_to_read(&file).map_err(CheckError::Open)?;
    Ok((file, Arc::new(device)))
}

/// Reads the head of a device, and returns what the device holds.
fn content(path: &Path, device: &dyn Device) -> Result<Content, CheckError> {
    let mut head = vec![0; HEAD.min(device.size() as usize)];
    device.read_at(0, &mut head).map_err(|error| CheckError::Read(path.to_owned(), error))?;
    Ok(Content::of(&head))
}

/// Returns true if the device at `path` is the fast device of the lane with this label.
fn is_fast_of(path: &Path, label: &Label) -> bool {
    let found = open(path).and_then(|(file, device)| content(&file, &*device));
    matches!(found, Ok(Content::Store(superblock)) if superblock.store_id == label.store_id)
}

/// Joins a store's fast device with its lower device. If the store has no lower device, returns the
/// fast device alone.
fn join(
    file: &Path,
    device: Arc<dyn Device>,
    lower: Option<&Path>,
) -> Result<Arc<dyn Device>, CheckError> {
    let read = |error| CheckError::Read(file.to_owned(), error);
    let superblock = match read_superblock(&*device).map_err(read)? {
        Ok(superblock) if superblock.has_lower() => superblock,
        // The survey reports errors in the superblock, so they are ignored here.
        Ok(_) | Err(_) => return Ok(device),
    };
    let Some(path) = lower else { return Err(CheckError::LowerMissing(file.to_owned())) };
    let is_same = |other: PathInfo| PathInfo::at(file).is_ok_and(|info| info.is_same(&other));
    if PathInfo::at(path).is_ok_and(is_same) {
        return Err(CheckError::Twice(path.to_owned()));
    }
    let (path, lower) = open(path)?;
    let mut head = [0; LABEL_BYTES];
    lower.read_at(0, &mut head).map_err(|error| CheckError::Read(path.clone(), error))?;
    let checked = match superblock.fast_part() {
        Some(fast) => Label::new(superblock.store_id, fast, superblock.lanes.here)
            .check(&head)
            .map(|()| fast.total_bytes()),
        None => Err(LabelError::Damaged),
    };
    let border = checked.map_err(|error| CheckError::Lower(path, error))?;
    if border > device.size() || lower.size() < LABEL_AREA {
        let error = io::Error::other("it is smaller than the store on it");
        return Err(CheckError::Read(file.to_owned(), error));
    }
    Ok(Arc::new(Joined::new(device, border, lower, LABEL_AREA)))
}

fn check(path: &Path, lower: Option<&Path>) -> Result<report::Report, CheckError> {
    let (file, device) = open(path)?;
    if let Content::Lower(label) = content(&file, &*device)? {
        let fast = lower.filter(|fast| is_fast_of(fast, &label));
        return Err(CheckError::IsLower(path.to_owned(), label, fast.map(Path::to_owned)));
    }
    let device = join(&file, device, lower)?;
    let mut teller = Teller::new();
    let result = survey::survey(&*device, &machine_time(), &mut |done, of| teller.hear(done, of));
    teller.end();
    let mut report = result.map_err(|unusable| match unusable {
        survey::Unusable::Superblock(error) => CheckError::Superblock(file.clone(), error),
        survey::Unusable::Read(error) => CheckError::Read(file.clone(), error),
    })?;
    report.path = file.display().to_string();
    report.device_bytes = device.size();
    Ok(report)
}

/// Shows progress on a terminal.
struct Teller {
    shown: bool,
    last: Instant,
}

impl Teller {
    fn new() -> Teller {
        Teller { shown: false, last: Instant::now() }
    }

    fn hear(&mut self, done: u32, of: u32) {
        if self.last.elapsed() >= INTERVAL && io::stderr().is_terminal() {
            self.last = Instant::now();
            self.shown = true;
            terminal::complain(format_args!("\rsegment {done} of {of}"));
        }
    }

    fn end(&self) {
        if self.shown {
            complain!("");
        }
    }
}
