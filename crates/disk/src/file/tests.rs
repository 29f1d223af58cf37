//! Tests on real files in the temporary directory.

use super::*;
use std::os::unix::fs::MetadataExt;

/// A directory that is removed with its content when this value is dropped.
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

fn length(path: &Path) -> u64 {
    path.metadata().expect("exists").len()
}

#[test]
fn a_directory_gets_a_file_of_the_size_asked_for() {
    let folder = Folder::new("create");
    let device = FileDevice::open(&folder.0, Some(SIZE + 4095)).expect("opens");
    assert!(device.is_new());
    assert_eq!(device.path(), folder.file(FILE_NAME));
    assert_eq!(device.size(), SIZE, "rounded down");
    let metadata = device.path().metadata().expect("exists");
    assert_eq!(metadata.len(), SIZE);
    assert_eq!(metadata.mode() & 0o777, 0o600, "only the owner may read the data of clients");
    let scratch = File::create(folder.file("scratch")).expect("file");
    if kernel::allocate(&scratch, 0, 4096).is_ok() {
        assert!(metadata.blocks() * 512 >= SIZE, "space is allocated, not only promised");
    }
}

#[test]
fn a_reopened_file_has_its_content_and_size() {
    let folder = Folder::new("reopen");
    let path = folder.file("data");
    let device = FileDevice::open(&path, Some(SIZE)).expect("opens");
    device.write_at(SIZE - 10_000, &[5; 10_000]).expect("write");
    device.sync().expect("sync");
    drop(device);
    let device = FileDevice::open(&path, None).expect("opens again");
    assert!(!device.is_new());
    assert_eq!(device.size(), SIZE, "without a size it stays as it is");
    let mut found = [0; 10_000];
    device.read_at(SIZE - 10_000, &mut found).expect("read");
    assert_eq!(found, [5; 10_000]);
    device.read_at(0, &mut found).expect("read");
    assert_eq!(found, [0; 10_000], "bytes that were never written are zero");
}

#[test]
fn a_second_opener_is_refused_until_the_first_is_gone() {
    let folder = Folder::new("lock");
    let first = FileDevice::open(&folder.0, Some(SIZE)).expect("opens");
    let second = FileDevice::open(&folder.file(FILE_NAME), Some(SIZE * 2));
    assert!(matches!(second, Err(OpenError::Locked { .. })), "{second:?}");
    assert_eq!(length(first.path()), SIZE, "refused before anything is changed");
    drop(first);
    FileDevice::open(&folder.0, None).expect("the lock is gone");
}

#[test]
fn readers_share_a_file_that_no_writer_has_and_cannot_change_it() {
    let folder = Folder::new("read");
    let missing = FileDevice::open_to_read(&folder.0);
    assert!(matches!(missing, Err(OpenError::Io { .. })), "{missing:?}");
    assert!(!folder.file(FILE_NAME).exists(), "nothing is created");
    let writer = FileDevice::open(&folder.0, Some(SIZE)).expect("opens");
    let refused = FileDevice::open_to_read(&folder.0);
    assert!(matches!(refused, Err(OpenError::Locked { .. })), "{refused:?}");
    writer.write_at(SIZE - 4096, &[7; 4096]).expect("writes");
    drop(writer);

    let device = FileDevice::open_to_read(&folder.0).expect("opens");
    FileDevice::open_to_read(&folder.file(FILE_NAME)).expect("a second reader");
    let refused = FileDevice::open(&folder.0, None);
    assert!(matches!(refused, Err(OpenError::Locked { .. })), "{refused:?}");
    let (mut cached, mut stored) = ([0; 4096], [0; 4096]);
    device.read_at(SIZE - 4096, &mut cached).expect("reads");
    device.read_stored(SIZE - 4096, &mut stored).expect("reads");
    assert_eq!((cached, stored), ([7; 4096], [7; 4096]));
    assert_eq!((device.size(), device.is_new()), (SIZE, false));
    let large = ReadBuffer::new(0, DIRECT, 4096);
    device.write_at(0, &large).expect_err("not open for writing");
    device.write_directly(0, &large).expect_err("not open for writing");
    device.grow(SIZE * 2).expect_err("not open for writing");
    assert_eq!(length(device.path()), SIZE);
}

#[test]
fn a_file_grows_and_keeps_its_content() {
    let folder = Folder::new("grow");
    let device = FileDevice::open(&folder.0, Some(SIZE)).expect("opens");
    device.write_at(0, &[1; 4096]).expect("write");
    drop(device);
    let device = FileDevice::open(&folder.0, Some(SIZE * 2)).expect("grows");
    assert_eq!((device.size(), length(device.path())), (SIZE * 2, SIZE * 2));
    let mut found = [0; 4096];
    device.read_at(0, &mut found).expect("read");
    assert_eq!(found, [1; 4096]);
    device.write_at(SIZE * 2 - 4096, &[2; 4096]).expect("write to the new part");
}

#[test]
fn a_file_grows_while_it_is_used() {
    let folder = Folder::new("grow-live");
    let device = FileDevice::open(&folder.0, Some(SIZE)).expect("opens");
    device.write_at(0, &[1; 4096]).expect("write");
    let event = eventfd();
    let mut queue = device.read_queue(std::os::fd::AsFd::as_fd(&event)).ok();
    assert!(device.write_at(SIZE, &[2; 4096]).is_err());
    device.grow(SIZE * 2 + 4095).expect("grows");
    assert_eq!((device.size(), length(device.path())), (SIZE * 2, SIZE * 2));
    let metadata = device.path().metadata().expect("exists");
    let scratch = File::create(folder.file("scratch")).expect("file");
    if kernel::allocate(&scratch, 0, 4096).is_ok() {
        assert!(metadata.blocks() * 512 >= SIZE * 2, "space is allocated, not only promised");
    }
    device.write_at(SIZE * 2 - 4096, &[2; 4096]).expect("write to the new part");
    device.sync().expect("sync");
    device.sync().expect("sync");
    let mut found = [0; 4096];
    device.read_at(SIZE * 2 - 4096, &mut found).expect("read");
    assert_eq!(found, [2; 4096]);
    // A queue that existed before the growth reads the new bytes.
    if let Some(queue) = &mut queue {
        queue.push(7, SIZE * 2 - 4096, 4096).expect("lies inside");
        assert_eq!(all_ended(&mut **queue, &event, 1), [(7, Some(vec![2; 4096]))]);
        assert!(queue.push(8, SIZE * 2, 1).is_err());
    }
    device.grow(SIZE * 2).expect("that much is there");
    drop(device);
    let device = FileDevice::open(&folder.0, None).expect("opens");
    assert_eq!(device.size(), SIZE * 2);
    device.read_at(0, &mut found).expect("read");
    assert_eq!(found, [1; 4096]);
}

#[test]
fn space_is_allocated_in_steps() {
    let size = 2 * ALLOCATION_STEP;
    let found: Vec<_> = steps(SIZE, size).collect();
    let second = SIZE + ALLOCATION_STEP;
    assert_eq!(found, [SIZE..second, second..size]);
    assert_eq!(steps(size, size).count(), 0);
    assert_eq!(steps(u64::MAX - 4096, u64::MAX).count(), 1);
}

#[test]
fn a_growth_can_be_undone_and_repeated() {
    let folder = Folder::new("grow-back");
    let device = FileDevice::open(&folder.0, Some(SIZE)).expect("opens");
    device.grow(SIZE * 2).expect("grows");
    device.shrink(SIZE).expect("shrinks");
    assert_eq!((device.size(), length(device.path())), (SIZE, SIZE));
    assert!(device.write_at(SIZE, &[1; 4096]).is_err());
    assert!(device.shrink(SIZE * 2).is_err(), "it does not grow so");
    device.grow(SIZE * 2).expect("grows");
    device.write_at(SIZE * 2 - 4096, &[2; 4096]).expect("write to the new part");
    device.sync().expect("sync");
    assert_eq!((device.size(), length(device.path())), (SIZE * 2, SIZE * 2));
}

#[test]
fn a_failed_growth_leaves_the_file_unchanged() {
    let folder = Folder::new("grow-refused");
    let device = FileDevice::open(&folder.0, Some(SIZE)).expect("opens");
    device.write_at(SIZE - 4096, &[3; 4096]).expect("write");
    let why = |size| device.grow(size).expect_err("refused").to_string();
    let free = kernel::free_bytes(&device.file).expect("asked");
    if free.is_some_and(|free| free < 1 << 60) {
        assert!(why(1 << 60).contains("bytes more are needed"), "{}", why(1 << 60));
    }
    assert!(why(SIZE - 4096).contains("cannot shrink"), "{}", why(SIZE - 4096));
    assert_eq!((device.size(), length(device.path())), (SIZE, SIZE));
    let mut found = [0; 4096];
    device.read_at(SIZE - 4096, &mut found).expect("read");
    assert_eq!(found, [3; 4096]);
}

#[test]
fn a_file_does_not_shrink() {
    let folder = Folder::new("shrink");
    drop(FileDevice::open(&folder.0, Some(SIZE)).expect("opens"));
    let device = FileDevice::open(&folder.0, Some(SIZE / 2)).expect("opens as it is");
    assert_eq!((device.size(), length(&folder.file(FILE_NAME))), (SIZE, SIZE));
}

#[test]
fn a_foreign_file_is_left_unchanged() {
    let folder = Folder::new("foreign");
    let path = folder.file("letter");
    std::fs::write(&path, b"dear Larder").expect("write");
    let mut seen = Vec::new();
    let refused = FileDevice::open_checked(&path, Some(SIZE), DEFAULT_SIZE, |head| {
        seen = head.to_vec();
        false
    });
    assert!(matches!(refused, Err(OpenError::Foreign { .. })), "{refused:?}");
    assert_eq!(seen, b"dear Larder");
    assert_eq!(std::fs::read(&path).expect("read"), b"dear Larder");

    let new = FileDevice::open_checked(&folder.0, Some(SIZE), DEFAULT_SIZE, |_| {
        panic!("a new file is not shown")
    });
    drop(new.expect("opens"));
    let again = FileDevice::open_checked(&folder.0, None, DEFAULT_SIZE, |head| head == [0; HEAD]);
    again.expect("8192 bytes are shown");
}

#[test]
fn calls_outside_the_file_do_not_change_it() {
    let folder = Folder::new("range");
    let device = FileDevice::open(&folder.0, Some(SIZE)).expect("opens");
    let error = device.write_at(SIZE - 1, &[1, 2]).expect_err("one byte too long");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert!(device.read_at(SIZE, &mut [0]).is_err());
    assert_eq!(length(device.path()), SIZE);
    let mut last = [9];
    device.read_at(SIZE - 1, &mut last).expect("read");
    assert_eq!(last, [0], "not even the part that fits");
}

#[test]
fn prepared_bytes_are_zeros_or_unchanged_and_their_neighbours_stay() {
    let folder = Folder::new("prepare");
    let device = FileDevice::open(&folder.0, Some(SIZE)).expect("opens");
    let block = [7; GRAIN as usize];
    let (start, length) = (GRAIN, SIZE as usize - 2 * GRAIN as usize);
    let end = start + length as u64;
    for at in [0, start, end] {
        device.write_at(at, &block).expect("write");
    }
    let written = device.prepare(start, length).expect("prepare");
    assert!(written == length || written == 0 && !device.notes_first_writes, "{written}");
    let mut all = vec![9; SIZE as usize];
    device.read_at(0, &mut all).expect("read");
    let whole = GRAIN as usize;
    assert!(all[..whole] == block && all[end as usize..] == block);
    let first = if written > 0 { [0; GRAIN as usize] } else { block };
    assert!(all[whole..2 * whole] == first, "other bytes than were written through the page cache");
    assert!(all[2 * whole..end as usize].iter().all(|&byte| byte == 0));
    let error = device.prepare(GRAIN, SIZE as usize).expect_err("outside");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn reading_a_file_that_was_cut_short_fails() {
    let folder = Folder::new("cut");
    let device = FileDevice::open(&folder.0, Some(SIZE)).expect("opens");
    let other = OpenOptions::new().write(true).open(device.path()).expect("opens");
    other.set_len(SIZE / 2).expect("cut");
    let error = device.read_at(SIZE - 4096, &mut [0; 4096]).expect_err("not there");
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn a_path_that_cannot_hold_a_store_is_named_in_the_error() {
    let folder = Folder::new("places");
    let missing = folder.file("missing");
    let cases = [
        (missing.join("data"), "no such directory"),
        (missing.join(""), "no such directory"),
        (PathBuf::from("/dev/null"), "a directory, a file or a block device"),
        (folder.file(FILE_NAME).join("below"), "below"),
    ];
    drop(FileDevice::open(&folder.0, Some(SIZE)).expect("opens"));
    for (path, expected) in cases {
        let message = FileDevice::open(&path, Some(SIZE)).expect_err("refused").to_string();
        assert!(message.contains(expected), "{}: {message}", path.display());
    }
    assert!(!missing.exists());
}

#[test]
fn an_impossible_size_is_refused_and_leaves_the_file_unchanged() {
    let folder = Folder::new("sizes");
    let path = folder.file("data");
    let small = FileDevice::open(&path, Some(MIN_SIZE - 1)).expect_err("too small");
    assert!(matches!(small, OpenError::TooSmall { .. }), "{small:?}");
    drop(FileDevice::open(&path, Some(SIZE)).expect("opens"));
    let large = FileDevice::open(&path, Some(1 << 60)).expect_err("too large");
    assert!(matches!(large, OpenError::NoSpace { .. }), "{large:?}");
    assert_eq!(length(&path), SIZE);
}

#[test]
fn the_default_size_is_limited_to_a_quarter_of_the_free_space() {
    assert_eq!(default_size(80 << 30, 1 << 30), Some(1 << 30));
    assert_eq!(default_size(80 << 30, (1 << 30) + 5000), Some((1 << 30) + 4096), "rounded down");
    assert_eq!(default_size(80 << 30, 64 << 30), Some(20 << 30), "a quarter of the free space");
    assert_eq!(default_size(4 * MIN_SIZE, 1 << 30), Some(MIN_SIZE));
    assert_eq!(default_size(4 * MIN_SIZE - 1, 1 << 30), None);
    assert_eq!(default_size(0, 1 << 30), None);
}

#[test]
fn several_threads_write_and_read_at_once() {
    let folder = Folder::new("threads");
    let device = FileDevice::open(&folder.0, Some(SIZE)).expect("opens");
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let device = &device;
            scope.spawn(move || {
                for block in 0..32 {
                    let at = (block * 4 + u64::from(thread)) * 4096;
                    device.write_at(at, &[thread + 1; 4096]).expect("write");
                    if block % 8 == 0 {
                        device.sync().expect("sync");
                    }
                }
            });
        }
    });
    for block in 0..128 {
        let mut found = [0; 4096];
        device.read_at(block * 4096, &mut found).expect("read");
        assert_eq!(found, [(block % 4) as u8 + 1; 4096], "block {block}");
    }
}

/// Submits the reads of a queue and returns their results after all of them have ended.
fn all_ended(queue: &mut dyn ReadQueue, event: &File, count: usize) -> Vec<(u64, Option<Vec<u8>>)> {
    let mut found = Vec::new();
    queue.submit();
    while found.len() < count {
        std::io::Read::read(&mut &*event, &mut [0; 8]).expect("an event comes");
        queue.ended(&mut |token, result| {
            found.push((token, result.ok().map(|bytes| bytes.to_vec())));
        });
        queue.submit();
    }
    found.sort_unstable();
    found
}

fn eventfd() -> File {
    // SAFETY: the call takes no pointers, and the descriptor has no other owner.
    unsafe {
        let fd = libc::eventfd(0, libc::EFD_CLOEXEC);
        assert!(fd >= 0);
        std::os::fd::FromRawFd::from_raw_fd(fd)
    }
}

#[test]
fn a_queue_reads_many_ranges_at_once() {
    let folder = Folder::new("queue");
    let device = FileDevice::open(&folder.0, Some(SIZE)).expect("opens");
    let bytes: Vec<u8> =
        (0..SIZE as u32).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 24) as u8).collect();
    device.write_at(0, &bytes).expect("write");
    device.sync().expect("sync");
    let event = eventfd();
    let Ok(mut queue) = device.read_queue(std::os::fd::AsFd::as_fd(&event)) else {
        return eprintln!("io_uring cannot be used here");
    };
    // Pushes more reads than the kernel gets at once, at any offset.
    let ranges: Vec<(usize, usize)> = (0..1000)
        .map(|n: usize| (n * 4091 % (SIZE as usize - 9000), 1 + n * 37 % 9000))
        .chain([(0, 1), (SIZE as usize - 1, 1), (SIZE as usize - 5000, 5000)])
        .collect();
    for (token, &(from, len)) in ranges.iter().enumerate() {
        queue.push(token as u64, from as u64, len).expect("lies inside");
    }
    for (token, found) in all_ended(&mut *queue, &event, ranges.len()) {
        let (from, len) = ranges[token as usize];
        assert_eq!(found.as_deref(), Some(&bytes[from..from + len]), "{len} bytes at {from}");
    }
    let outside = queue.push(0, SIZE - 1, 2).expect_err("outside");
    assert_eq!(outside.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn a_queue_sees_the_latest_write() {
    let folder = Folder::new("queue-fresh");
    let device = FileDevice::open(&folder.0, Some(SIZE)).expect("opens");
    let event = eventfd();
    let Ok(mut queue) = device.read_queue(std::os::fd::AsFd::as_fd(&event)) else { return };
    for round in 0..50u8 {
        let at = u64::from(round % 7) * 3000;
        device.write_at(at, &[round; 3000]).expect("write");
        queue.push(u64::from(round), at, 3000).expect("lies inside");
        let found = all_ended(&mut *queue, &event, 1);
        assert_eq!(found, [(u64::from(round), Some(vec![round; 3000]))]);
    }
}

#[test]
fn a_dropped_queue_ends_its_reads_and_a_file_cut_short_is_a_read_error() {
    let folder = Folder::new("queue-cut");
    let device = FileDevice::open(&folder.0, Some(SIZE)).expect("opens");
    let event = eventfd();
    let Ok(mut queue) = device.read_queue(std::os::fd::AsFd::as_fd(&event)) else { return };
    (0..300).for_each(|token| queue.push(token, token * 4096, 4096).expect("lies inside"));
    queue.submit();
    drop(queue);
    let mut queue = device.read_queue(std::os::fd::AsFd::as_fd(&event)).expect("another");
    OpenOptions::new()
        .write(true)
        .open(device.path())
        .expect("opens")
        .set_len(SIZE / 2)
        .expect("cut");
    queue.push(1, SIZE - 4096, 4096).expect("lies inside");
    assert_eq!(all_ended(&mut *queue, &event, 1), [(1, None)], "an error, not zeros");
}

/// Large reads and writes bypass the page cache. Large reads must see what small writes wrote, and
/// small reads must see what large writes wrote.
#[test]
fn large_and_small_calls_see_the_same_bytes() {
    let folder = Folder::new("direct");
    let device = FileDevice::open(&folder.file("data"), Some(SIZE)).expect("opens");
    device.write_at(DIRECT as u64 - 512, &[1; 1024]).expect("write");
    let mut large = ReadBuffer::new(0, 2 * DIRECT, GRAIN as usize);
    device.read_at(0, large.bytes_mut()).expect("read");
    assert_eq!(large[DIRECT - 513..DIRECT + 513], [&[0][..], &[1; 1024], &[0]].concat());
    large.bytes_mut().fill(2);
    device.write_directly(GRAIN, &large).expect("write");
    let mut small = [0; 3];
    device.read_at(GRAIN - 1, &mut small).expect("read");
    assert_eq!(small, [0, 2, 2]);
    device.read_at(GRAIN + 2 * DIRECT as u64 - 2, &mut small).expect("read");
    assert_eq!(small, [2, 2, 0]);
}

/// A file system may require more alignment than it reports. A direct read or write that it refuses
/// must go through the page cache.
#[test]
fn a_refused_direct_write_goes_through_the_page_cache() {
    let folder = Folder::new("refused");
    let mut device = FileDevice::open(&folder.file("data"), Some(SIZE)).expect("opens");
    let Some((direct, _)) = device.direct.take() else { return };
    device.direct = Some((direct, 1));
    let bytes: Vec<u8> = (0..=255).cycle().take(2 * DIRECT).collect();
    device.write_directly(7, &bytes).expect("write");
    assert!(device.refuses_direct.swap(false, Ordering::Relaxed), "the disk takes any alignment");
    let mut read = vec![0; 2 * DIRECT + 1];
    device.read_at(6, &mut read).expect("read");
    assert_eq!((read[0], &read[1..]), (0, &bytes[..]));
}
