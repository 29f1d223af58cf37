//! `/lab/report.html` serves the report of `larder bench all`. The setting `--lab-report` names the
//! report's file or its directory, and requests contain no path, so they can get no other file.
//! `/v1/lab` describes this report for the page. The file is read for each request, because a new
//! run replaces it.
//!
//! If the setting names a directory, the report is the file `report.html` in it. A link with that
//! name is not followed. If it were followed, any user who may write to the directory could make
//! the server show any file that the server may read. `larder bench all` itself writes no links. A
//! link that the setting itself names is followed.
//!
//! A report is a document of another program and perhaps of another machine, so it gets less trust
//! than the page, although both come from the same port. The Content-Security-Policy in [`HEADERS`]
//! restricts the report. With `sandbox`, the report's origin is opaque: the browser keeps the
//! report apart from the page, and [`origin`](super::origin) refuses its requests. With
//! `default-src 'none'`, the report can load nothing and send no requests. The report's script and
//! style are inside the document, so inline ones are allowed. Hashes would not be stricter: the
//! server would compute them from the same file, and so allow any contents of the file.
//! `allow-downloads` is there for the report's link to its figures. The document itself states a
//! stricter policy, and the browser enforces both.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{Stream, unfold};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, spawn_blocking};

use super::headers::HARDENED;
use super::state::AdminState;

/// The name of the report in the directory that `larder bench all` writes.
const NAME: &str = "report.html";
/// The largest report that is served, in bytes.
pub(super) const REPORT_MAX: u64 = 64 << 20;
/// The largest JSON file of results that is read for the description, in bytes.
const RESULTS_MAX: u64 = 16 << 20;
/// The number of bytes that one read of a report takes from the file. If the client does not read
/// the reply, hyper keeps several such chunks, up to about 0.5 MB.
const CHUNK: u64 = 64 << 10;
/// The largest number of files of results that are read at a time.
static DESCRIBERS: Semaphore = Semaphore::const_new(1);
/// The largest number of threads that read reports. A device that does not answer blocks only these
/// threads.
static READERS: Semaphore = Semaphore::const_new(4);

pub(super) const HEADERS: [(HeaderName, &str); 5] = [
    (header::CONTENT_TYPE, "text/html; charset=utf-8"),
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (
        header::CONTENT_SECURITY_POLICY,
        "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; \
         style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'",
    ),
];

/// What the page shows about the report.
#[derive(Debug, Default, Serialize)]
struct Description {
    /// The path of the report; absent if `--lab-report` is not set.
    file: Option<String>,
    /// The reason why the report cannot be opened.
    problem: Option<String>,
    bytes: u64,
    /// Time of the last change of the file, in milliseconds since the Unix epoch.
    changed: u64,
    /// The results in the JSON file beside the report; absent if [`results`] cannot read them.
    results: Option<Results>,
}

/// The part of the results that the page shows.
#[derive(Debug, Serialize, Deserialize)]
struct Results {
    /// The end of the run, in the form of RFC 3339.
    date: String,
    larder: Build,
    scale: String,
    /// True if the run ended before all measurements were made.
    interrupted: bool,
    machine: Machine,
    #[serde(serialize_with = "count")]
    systems: Vec<IgnoredAny>,
    experiments: Vec<Experiment>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Build {
    version: String,
    revision: Option<String>,
    profile: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Machine {
    cpu: String,
    cpus: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Experiment {
    id: String,
}

fn count<S: serde::Serializer>(items: &[IgnoredAny], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(items.len() as u64)
}

/// Runs `work`, which may block, on another thread. One of the `permits` is held until `work` ends,
/// even if the client disconnects before, because the thread cannot be stopped.
pub(super) async fn on_thread<T: Send + 'static>(
    permits: &'static Semaphore,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    // `acquire` fails only if the semaphore is closed, and nothing closes it.
    let permit = permits.acquire().await;
    let held = move || {
        let _permit = permit;
        work()
    };
    spawn_blocking(held).await
}

/// Serves the report.
pub(super) async fn report(State(state): State<Arc<AdminState>>) -> Response {
    let Some(path) = state.settings().lab_report.clone() else {
        return (StatusCode::NOT_FOUND, "no report is set: see --lab-report\n").into_response();
    };
    match on_thread(&READERS, move || ReportFile::of(&path).open(REPORT_MAX)).await {
        Ok(Ok(file)) => {
            let length = [(header::CONTENT_LENGTH, file.length)];
            (HEADERS, length, Body::from_stream(chunks(file))).into_response()
        }
        Ok(Err(problem)) => (StatusCode::NOT_FOUND, format!("{problem}\n")).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// Describes the report as JSON.
pub(super) async fn description(State(state): State<Arc<AdminState>>) -> Response {
    let path = state.settings().lab_report.clone();
    let described =
        on_thread(&DESCRIBERS, move || path.map(|path| describe(&ReportFile::of(&path)))).await;
    (HARDENED, axum::Json(described.ok().flatten().unwrap_or_default())).into_response()
}

/// The file of a report or of its results.
#[derive(Debug)]
struct ReportFile {
    path: PathBuf,
    /// True if a link at `path` is followed.
    follows: bool,
}

impl ReportFile {
    /// Returns the file of the report. `path` is that file or its directory.
    fn of(path: &Path) -> ReportFile {
        match path.is_dir() {
            true => ReportFile { path: path.join(NAME), follows: false },
            false => ReportFile { path: path.to_owned(), follows: true },
        }
    }

    /// Returns the file of the results beside the report.
    fn results(&self) -> ReportFile {
        ReportFile { path: self.path.with_extension("json"), ..*self }
    }

    /// Opens a regular file of at most `max` bytes.
    fn open(&self, max: u64) -> Result<Sized, String> {
        let name = self.path.display();
        let failed = |error: io::Error| match error.raw_os_error() {
            Some(libc::ELOOP) if !self.follows => {
                format!("{name} is a link: name the file itself in --lab-report")
            }
            _ => format!("{name}: {error}"),
        };
        let follow = if self.follows { 0 } else { libc::O_NOFOLLOW };
        // Without O_NONBLOCK, opening a pipe waits for its writer.
        let flags = libc::O_NONBLOCK | follow;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&self.path);
        let file = file.map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        match metadata.len() {
            _ if !metadata.is_file() => Err(format!("{name} is no file")),
            length if length > max => Err(format!("{name} is larger than {} MiB", max >> 20)),
            length => Ok(Sized { file, length }),
        }
    }
}

/// A file of known length.
#[derive(Debug)]
struct Sized {
    file: File,
    length: u64,
}

/// Reads the file in chunks. The stream ends with an error if the file becomes shorter during the
/// read.
fn chunks(file: Sized) -> impl Stream<Item = io::Result<Vec<u8>>> {
    unfold(Some(file), |rest| async move {
        let rest = rest.filter(|rest| rest.length > 0)?;
        match on_thread(&READERS, move || next_chunk(rest)).await {
            Ok(Ok((chunk, rest))) => Some((Ok(chunk), Some(rest))),
            Ok(Err(error)) => Some((Err(error), None)),
            Err(error) => Some((Err(io::Error::other(error)), None)),
        }
    })
}

fn next_chunk(mut rest: Sized) -> io::Result<(Vec<u8>, Sized)> {
    let mut chunk = vec![0; rest.length.min(CHUNK) as usize];
    rest.file.read_exact(&mut chunk)?;
    rest.length -= chunk.len() as u64;
    Ok((chunk, rest))
}

fn describe(place: &ReportFile) -> Description {
    let file = Some(place.path.display().to_string());
    let described = Description { file, ..Default::default() };
    let report = match place.open(REPORT_MAX) {
        Ok(report) => report,
        Err(problem) => return Description { problem: Some(problem), ..described },
    };
    let changed = report.file.metadata().and_then(|metadata| metadata.modified()).ok();
    let changed = changed.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Description {
        bytes: report.length,
        changed: changed.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(0)),
        results: results(&place.results()),
        ..described
    }
}

/// Reads the results of a run; `None` if there are none, or if they have another form.
fn results(place: &ReportFile) -> Option<Results> {
    let json = place.open(RESULTS_MAX).ok()?;
    // The file may have grown since its length was checked, so the limit is enforced here too.
    serde_json::from_reader(BufReader::new(json.file.take(RESULTS_MAX))).ok()
}
