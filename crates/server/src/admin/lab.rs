//! The report of `larder bench all` that `--lab-report` names, at `/lab/report.html`, and what the
//! page says about it, at `/v1/lab`. The setting names one file, so no request can name another one.
//! The file is read for each request, because a new run replaces it.
//!
//! A report is a document of another program and perhaps of another machine, so it gets less trust
//! than the page, although both come from the same port. With `sandbox`, its origin is opaque: the
//! browser keeps it apart from the page, and [`origin`](super::origin) refuses what it sends.
//! `default-src 'none'` lets it load nothing and ask nobody. Its script and style stand inside the
//! document, so they are allowed. Hashes of them would have to be computed from the same file, and
//! would then allow whatever it contains. Only `allow-downloads` is added, for the report's link to
//! its figures. The report has a stricter policy of its own in its document; both hold.

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
use tokio::task::spawn_blocking;

use super::{HARDENED, Subject};

/// The name of the report in the directory that `larder bench all` writes.
const NAME: &str = "report.html";
/// The largest report that is served, in bytes.
pub(super) const REPORT_MAX: u64 = 64 << 20;
/// The largest file of results that is read for its date and build, in bytes.
const RESULTS_MAX: u64 = 16 << 20;
/// The number of bytes that are read at a time. A client that does not read holds no more memory.
const CHUNK: u64 = 64 << 10;
/// The number of files of results that are read at a time.
static READERS: Semaphore = Semaphore::const_new(1);

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

/// What the page says about the report.
#[derive(Debug, Default, Serialize)]
struct Description {
    /// The file; absent if the setting is.
    file: Option<String>,
    /// The reason why the report cannot be opened.
    problem: Option<String>,
    bytes: u64,
    /// Time of the last change of the file, in milliseconds since the Unix epoch.
    changed: u64,
    /// From the JSON beside the report; absent if there is none.
    results: Option<Results>,
}

/// The part of the results that the page shows.
#[derive(Debug, Serialize, Deserialize)]
struct Results {
    /// The end of the run, in the form of RFC 3339.
    date: String,
    larder: Build,
    scale: String,
    /// True if the run ended before all points were measured.
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

/// Serves the report.
pub(super) async fn report(State(subject): State<Arc<Subject>>) -> Response {
    let Some(path) = subject.settings().lab_report.clone() else {
        return (StatusCode::NOT_FOUND, "no report is set: see --lab-report\n").into_response();
    };
    match spawn_blocking(move || open(&file_of(&path), REPORT_MAX)).await {
        Ok(Ok(file)) => {
            let length = [(header::CONTENT_LENGTH, file.length)];
            (HEADERS, length, Body::from_stream(chunks(file))).into_response()
        }
        Ok(Err(problem)) => (StatusCode::NOT_FOUND, format!("{problem}\n")).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// Describes the report as JSON.
pub(super) async fn description(State(subject): State<Arc<Subject>>) -> Response {
    let path = subject.settings().lab_report.clone();
    // The semaphore is never closed.
    let _turn = READERS.acquire().await;
    let described = spawn_blocking(move || path.map(|path| describe(&file_of(&path)))).await;
    (HARDENED, axum::Json(described.ok().flatten().unwrap_or_default())).into_response()
}

/// Returns the file of the report. `path` is that file or its directory.
fn file_of(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(NAME) } else { path.to_owned() }
}

/// A file of known length.
#[derive(Debug)]
struct Sized {
    file: File,
    length: u64,
}

/// Opens a regular file of at most `max` bytes.
fn open(path: &Path, max: u64) -> Result<Sized, String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    // Without this flag, opening a pipe waits for its writer.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    match metadata.len() {
        _ if !metadata.is_file() => Err(format!("{} is no file", path.display())),
        length if length > max => {
            Err(format!("{} is larger than {} MiB", path.display(), max >> 20))
        }
        length => Ok(Sized { file, length }),
    }
}

/// Reads the file in chunks. It ends with an error if the file became shorter meanwhile.
fn chunks(file: Sized) -> impl Stream<Item = io::Result<Vec<u8>>> {
    unfold(Some(file), |rest| async move {
        let rest = rest.filter(|rest| rest.length > 0)?;
        match spawn_blocking(move || next_chunk(rest)).await {
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

fn describe(file: &Path) -> Description {
    let described = Description { file: Some(file.display().to_string()), ..Default::default() };
    let report = match open(file, REPORT_MAX) {
        Ok(report) => report,
        Err(problem) => return Description { problem: Some(problem), ..described },
    };
    let changed = report.file.metadata().and_then(|metadata| metadata.modified()).ok();
    let changed = changed.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Description {
        bytes: report.length,
        changed: changed.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(0)),
        results: results(&file.with_extension("json")),
        ..described
    }
}

/// Reads the results of a run; `None` if there are none, or if they have another form.
fn results(path: &Path) -> Option<Results> {
    let json = open(path, RESULTS_MAX).ok()?;
    // A file that grows meanwhile is read up to the limit only.
    serde_json::from_reader(BufReader::new(json.file.take(RESULTS_MAX))).ok()
}
