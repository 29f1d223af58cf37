//! The report of `larder bench all`, as the admin port serves it.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;

use tokio::sync::Semaphore;

use super::super::lab::{HEADERS, REPORT_MAX, on_thread};
use super::{ask, get, settings};
use crate::server::Server;
use crate::settings::Settings;

/// A directory that is removed when this value is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("larder-lab-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn server(&self, name: &str) -> Server {
        let lab_report = Some(self.0.join(name));
        Server::start(Settings { lab_report, ..settings() }).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn described(server: &Server) -> serde_json::Value {
    let (code, json) = get(server, "/v1/lab");
    assert_eq!(code, 200);
    serde_json::from_str(&json).unwrap()
}

#[test]
fn the_report_is_served_apart_from_the_page() {
    let folder = Folder::new("served");
    // The report is longer than several chunks.
    let html = "<!doctype html><title>r</title>".repeat(10_000);
    folder.write("report.html", &html);
    folder.write("secret.html", "secret");
    // The setting may name the directory or the file.
    for name in ["", "report.html"] {
        let server = folder.server(name);
        let address = server.admin_address().unwrap();
        let head = format!("GET /lab/report.html HTTP/1.1\r\nHost: {address}");
        let reply = ask(address, &head);
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 ") && body == html, "{head}");
        assert!(head.contains(&format!("content-length: {}", html.len())), "{head}");
        for (name, value) in HEADERS {
            assert_eq!(head.matches(&format!("\r\n{name}: {value}")).count(), 1, "{head}");
        }
        assert_eq!(head.matches("content-security-policy").count(), 1, "{head}");
        // With `allow-same-origin`, the report could send requests to the admin port with the
        // origin of the page.
        assert!(!head.contains("allow-same-origin"), "{head}");
        // The origin of a request by the report is `null`, so the request is refused.
        let head = format!("GET /v1/stats HTTP/1.1\r\nHost: {address}\r\nOrigin: null");
        assert!(ask(address, &head).starts_with("HTTP/1.1 403 "));
        for path in ["/lab/secret.html", "/lab/../secret.html", "/lab/%2e%2e/secret.html", "/lab/"]
        {
            assert_eq!(get(&server, path).0, 404, "{path}");
        }
    }
}

#[test]
fn nothing_is_served_unless_it_is_set() {
    let server = Server::start(settings()).unwrap();
    let (code, reason) = get(&server, "/lab/report.html");
    assert!(code == 404 && reason.contains("--lab-report"), "{reason}");
    assert_eq!(described(&server)["file"], serde_json::Value::Null);
    // A reload of the settings can name a report.
    let folder = Folder::new("reload");
    folder.write("report.html", "a report");
    let new = Settings { lab_report: Some(folder.0.clone()), ..settings() };
    assert_eq!(server.reloader().reload(&new).needs_restart, Vec::<String>::new());
    assert_eq!(get(&server, "/lab/report.html"), (200, "a report".to_owned()));
}

#[test]
fn a_report_that_cannot_be_served_has_a_reason() {
    let folder = Folder::new("problems");
    let refused = |name: &str, reason: &str| {
        let server = folder.server(name);
        let (code, text) = get(&server, "/lab/report.html");
        assert!(code == 404 && text.contains(reason), "{name}: {code} {text}");
        let problem = &described(&server)["problem"];
        assert!(problem.as_str().unwrap().contains(reason), "{problem}");
    };
    refused("nothing.html", "No such file");
    refused("", "report.html: No such file");
    let large = File::create(folder.0.join("large.html")).unwrap();
    large.set_len(REPORT_MAX + 1).unwrap();
    refused("large.html", "is larger than 64 MiB");
    assert!(Command::new("mkfifo").arg(folder.0.join("pipe")).status().unwrap().success());
    refused("pipe", "is no file");
    refused("pipe/x", "Not a directory");
}

/// Even after the client has disconnected, its request must hold the permit until the work has
/// ended.
#[test]
fn work_keeps_its_permit_when_its_client_goes_away() {
    static ONE: Semaphore = Semaphore::const_new(1);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (begun, has_begun) = mpsc::channel();
    let (end, may_end) = mpsc::channel::<()>();
    runtime.block_on(async {
        let work = move || {
            begun.send(()).unwrap();
            may_end.recv().unwrap();
        };
        let request = tokio::spawn(on_thread(&ONE, work));
        while has_begun.try_recv().is_err() {
            tokio::task::yield_now().await;
        }
        request.abort();
        assert!(request.await.unwrap_err().is_cancelled());
        assert_eq!(ONE.available_permits(), 0);
        end.send(()).unwrap();
        assert_eq!(on_thread(&ONE, || 7).await.unwrap(), 7);
    });
}

#[test]
fn links_inside_the_directory_are_not_followed() {
    let folder = Folder::new("links");
    let secrets = Folder::new("secrets");
    let results = "{\"date\":\"d\",\"larder\":{\"version\":\"v\"},\"scale\":\"s\",\"interrupted\":false,\
        \"machine\":{\"cpu\":\"c\",\"cpus\":1},\"systems\":[],\"experiments\":[]}";
    let secret = secrets.write("secret", "a secret");
    let secret_results = secrets.write("results", results);
    symlink(&secret, folder.0.join("report.html")).unwrap();
    symlink(&secret_results, folder.0.join("report.json")).unwrap();
    let server = folder.server("");
    let (code, text) = get(&server, "/lab/report.html");
    assert!(code == 404 && text.contains("report.html is a link"), "{code} {text}");
    assert_eq!(described(&server)["problem"].as_str().unwrap(), text.trim_end());
    // With a regular file as the report, the results are still not shown, because their file is a
    // link.
    std::fs::remove_file(folder.0.join("report.html")).unwrap();
    folder.write("report.html", "a report");
    assert_eq!(get(&server, "/lab/report.html"), (200, "a report".to_owned()));
    assert_eq!(described(&server)["results"], serde_json::Value::Null);
    // Links that the setting itself names are followed.
    symlink(&folder.0, secrets.0.join("latest")).unwrap();
    assert_eq!(get(&secrets.server("latest"), "/lab/report.html").1, "a report");
    symlink(folder.0.join("report.html"), secrets.0.join("latest.html")).unwrap();
    symlink(&secret_results, secrets.0.join("latest.json")).unwrap();
    let server = secrets.server("latest.html");
    assert_eq!(get(&server, "/lab/report.html"), (200, "a report".to_owned()));
    assert_eq!(described(&server)["results"]["date"], "d");
}

#[test]
fn the_results_beside_the_report_are_described() {
    let folder = Folder::new("described");
    folder.write("report.html", "a report");
    let server = folder.server("");
    let without = described(&server);
    assert_eq!((&without["bytes"], &without["problem"]), (&8.into(), &serde_json::Value::Null));
    assert!(without["changed"].as_u64().unwrap() > 1_600_000_000_000, "{without}");
    assert_eq!(without["results"], serde_json::Value::Null);
    let run =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results/2026-11-26-lab-small.json");
    std::fs::copy(&run, folder.0.join("report.json")).unwrap();
    let results = &described(&server)["results"];
    let written: serde_json::Value = serde_json::from_slice(&std::fs::read(run).unwrap()).unwrap();
    assert!(results["date"].is_string() && results["date"] == written["date"], "{results}");
    assert_eq!(results["larder"], written["larder"]);
    assert!(results["systems"].as_u64().unwrap() > 10, "{results}");
    assert_eq!(results["experiments"][0]["id"], "counter");
    for foreign in ["", "{}", "[1", "{\"date\": 3}", "<html>"] {
        folder.write("report.json", foreign);
        assert_eq!(described(&server)["results"], serde_json::Value::Null, "{foreign}");
    }
}
