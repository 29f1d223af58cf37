//! Answers the kernel: turns FUSE requests into reads, writes and syncs of [`Image`]s. There is one
//! flat directory. Only the operations that a store in a directory needs are implemented.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyStatfs, ReplyWrite,
    Request, TimeOrNow, WriteFlags,
};

use super::image::{BLOCK, Image};
use super::{CAPACITY, NameChange, Power, Shared, State};

/// The inode number of the directory, fixed by the protocol.
const ROOT: u64 = 1;
/// The time for which the kernel may cache a file's size. Sizes change only through the kernel, so
/// any time is correct.
const BELIEVED: Duration = Duration::from_secs(1);

/// A mounted disk. [`Mounted::unmount`] or dropping it unmounts the disk.
#[derive(Debug)]
pub(super) struct Mounted {
    session: BackgroundSession,
}

impl Mounted {
    pub(super) fn new(shared: Arc<Shared>, directory: &Path) -> io::Result<Mounted> {
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("larder-crash".into()), MountOption::RW];
        let session = fuser::spawn_mount(Served { shared }, directory, &config)?;
        Ok(Mounted { session })
    }

    pub(super) fn unmount(self) -> io::Result<()> {
        match self.session.umount_and_join() {
            // The kernel ended the connection while it handed over a request that no process waits
            // for, such as the close of a file. The disk is unmounted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => Ok(()),
            unmounted => unmounted,
        }
    }
}

struct Served {
    shared: Arc<Shared>,
}

fn attributes(number: u64, image: Option<&Image>) -> FileAttr {
    let time = SystemTime::UNIX_EPOCH;
    let size = image.map_or(0, Image::size);
    let (kind, perm) = match image {
        Some(_) => (FileType::RegularFile, 0o600),
        None => (FileType::Directory, 0o700),
    };
    FileAttr {
        ino: INodeNo(number),
        size,
        blocks: size.div_ceil(512),
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind,
        perm,
        nlink: 1,
        // SAFETY: the calls take no arguments, access no memory and cannot fail.
        uid: unsafe { libc::geteuid() },
        // SAFETY: as above.
        gid: unsafe { libc::getegid() },
        rdev: 0,
        blksize: BLOCK as u32,
        flags: 0,
    }
}

fn name_of(name: &OsStr) -> String {
    name.to_string_lossy().into_owned()
}

impl State {
    fn attributes(&self, number: u64) -> Result<FileAttr, Errno> {
        if number == ROOT {
            return Ok(attributes(ROOT, None));
        }
        let image = self.files.get(&number).ok_or(Errno::ENOENT)?;
        Ok(attributes(number, Some(image)))
    }

    fn image(&mut self, number: INodeNo) -> Result<&mut Image, Errno> {
        self.files.get_mut(&number.0).ok_or(Errno::ENOENT)
    }

    /// Applies a write. A failing write may still write a number of 512-byte sectors, from the
    /// beginning of its bytes on.
    fn write(&mut self, number: INodeNo, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.counts.writes += 1;
        self.counts.bytes += bytes.len() as u64;
        if let Some(error) = self.faults.write_error {
            self.counts.failed += 1;
            let part = self.random.below(bytes.len() as u64 + 1) as usize / 512 * 512;
            if part > 0 {
                self.image(number)?.write(offset, &bytes[..part]);
            }
            return Err(Errno::from_i32(error));
        }
        self.image(number)?.write(offset, bytes);
        Ok(())
    }
}

impl Filesystem for Served {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let state = self.shared.state();
        match state.names.get(&name_of(name)).map(|number| state.attributes(*number)) {
            Some(Ok(found)) => reply.entry(&BELIEVED, &found, Generation(0)),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.shared.state().attributes(number.0) {
            Ok(found) => reply.attr(&BELIEVED, &found),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let Some(mut state) = self.shared.powered() else { return reply.error(Errno::EIO) };
        if let (Some(size), Ok(image)) = (size, state.image(number)) {
            image.resize(size);
        }
        match state.attributes(number.0) {
            Ok(found) => reply.attr(&BELIEVED, &found),
            Err(error) => reply.error(error),
        }
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let Some(mut state) = self.shared.powered() else { return reply.error(Errno::EIO) };
        let number = state.next_file;
        state.next_file += 1;
        state.files.insert(number, Image::default());
        state.change_name(NameChange::Link(name_of(name), number));
        match state.attributes(number) {
            Ok(made) => {
                let handle = FileHandle(number);
                reply.created(&BELIEVED, &made, Generation(0), handle, FopenFlags::empty());
            }
            Err(error) => reply.error(error),
        }
    }

    fn unlink(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let Some(mut state) = self.shared.powered() else { return reply.error(Errno::EIO) };
        state.change_name(NameChange::Unlink(name_of(name)));
        reply.ok();
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        name: &OsStr,
        _: INodeNo,
        new_name: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let Some(mut state) = self.shared.powered() else { return reply.error(Errno::EIO) };
        let Some(number) = state.names.get(&name_of(name)).copied() else {
            return reply.error(Errno::ENOENT);
        };
        state.change_name(NameChange::Link(name_of(new_name), number));
        state.change_name(NameChange::Unlink(name_of(name)));
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let bytes =
            self.shared.state().image(number).map(|image| image.read(offset, size as usize));
        match bytes {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some(mut state) = self.shared.powered() else { return reply.error(Errno::EIO) };
        match state.write(number, offset, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(mut state) = self.shared.powered() else { return reply.error(Errno::EIO) };
        let end = offset.saturating_add(length);
        let done = match (mode, state.image(number)) {
            (_, Err(error)) => Err(error),
            (0, Ok(_)) if end > CAPACITY => Err(Errno::ENOSPC),
            (0, Ok(image)) => {
                let size = image.size().max(end);
                image.resize(size);
                Ok(())
            }
            _ => Err(Errno::EOPNOTSUPP),
        };
        match done {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    /// Answers a close. As on other file systems, a close makes nothing durable.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, number: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let mut state = self.shared.state();
        let covered = match state.image(number) {
            Ok(image) => image.sync_begins(),
            Err(error) => return reply.error(error),
        };
        let answer = |done: Result<(), i32>, reply: ReplyEmpty| match done {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(Errno::from_i32(error)),
        };
        if state.power == Power::On && state.faults.sync_delay(number.0).is_zero() {
            return answer(state.end_sync(number.0, covered), reply);
        }
        let killed = state.killed;
        drop(state);
        // Another thread waits and answers, so that this thread can answer other requests
        // meanwhile.
        let shared = Arc::clone(&self.shared);
        thread::spawn(move || answer(shared.sync(number.0, covered, killed), reply));
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let Some(mut state) = self.shared.powered() else { return reply.error(Errno::EIO) };
        state.name_changes.clear();
        state.durable_names = state.names.clone();
        reply.ok();
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let state = self.shared.state();
        let dots = [(".", ROOT), ("..", ROOT)].map(|(name, number)| (name.to_owned(), number));
        let entries = state.names.iter().map(|(name, number)| (name.clone(), *number));
        for (place, (name, number)) in dots.into_iter().chain(entries).enumerate() {
            let place = place as u64 + 1;
            let kind = if number == ROOT { FileType::Directory } else { FileType::RegularFile };
            if place > offset && reply.add(INodeNo(number), place, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let state = self.shared.state();
        let used: u64 = state.files.values().map(Image::size).sum();
        let block = BLOCK as u64;
        let free = CAPACITY.saturating_sub(used) / block;
        reply.statfs(CAPACITY / block, free, free, 1000, 900, BLOCK as u32, 255, BLOCK as u32);
    }

    fn access(&self, _: &Request, _: INodeNo, _: fuser::AccessFlags, reply: ReplyEmpty) {
        reply.ok();
    }
}
