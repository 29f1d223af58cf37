//! On real files in the temporary directory.

use super::*;

/// A directory that is removed with its content.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("larder-disk-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("temporary directory");
        Folder(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const SIZE: u64 = 4 << 20;

#[test]
fn a_second_opener_is_refused_until_the_first_is_gone() {
    let folder = Folder::new("lock");
    let first = FileDevice::open(&folder.0, Some(SIZE)).expect("opens");
    let second = FileDevice::open(&folder.file(FILE_NAME), Some(SIZE));
    assert!(matches!(second, Err(OpenError::Locked { .. })), "{second:?}");
    drop(first);
    FileDevice::open(&folder.0, None).expect("the lock is gone");
}
