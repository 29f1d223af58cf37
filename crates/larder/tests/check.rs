//! `larder check` from the command line: its output streams and exit codes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A directory that is deleted when this value is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("larder-check-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a writable directory");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn check(path: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    command.arg("check").arg(path).output().expect("the binary starts")
}

#[test]
fn a_file_that_is_not_a_store_is_unchanged() {
    let folder = Folder::new("none");
    let file = folder.0.join("larder.store");
    let cases: [(Option<Vec<u8>>, &str); 4] = [
        (None, "there is no store"),
        (Some(Vec::new()), "the device is empty"),
        (Some(vec![b'x'; 2 << 20]), "there is something on it that is not a store"),
        (Some(vec![0; 2 << 20]), "the device is empty"),
    ];
    for (content, reason) in cases {
        if let Some(content) = &content {
            fs::write(&file, content).expect("a file");
        }
        for path in [&folder.0, &file] {
            let output = check(path);
            assert_eq!(output.status.code(), Some(3), "{reason}");
            assert!(output.stdout.is_empty(), "{reason}");
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(error.starts_with("error: ") && error.contains(reason), "{reason}: {error}");
        }
        assert_eq!(fs::read(&file).ok(), content, "{reason}");
    }
    let socket = folder.0.join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    assert_eq!(check(&socket).status.code(), Some(3));
}
