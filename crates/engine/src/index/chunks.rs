//! Decides which chunks of the index's memory become huge pages. A chunk is a part of this memory
//! that one huge page can hold.
//!
//! A look-up touches one or two buckets anywhere in the index. With small pages, the TLB misses
//! cost as much as the look-up itself. But a huge page is resident as a whole, even if tables use
//! only a part of it. So only chunks that tables nearly fill, and have filled for a while, become
//! huge pages. Tables in other chunks are moved into one chunk after another, until each is full
//! enough.

use crate::UnixSeconds;
use larder_log::memory::mapping::{HUGE_PAGE, PAGE};
use std::io;
use std::ops::Range;

/// Small pages per chunk.
pub(super) const CHUNK: usize = HUGE_PAGE / PAGE;
/// The largest number of pages without tables in a chunk that becomes a huge page.
const HOLES: usize = CHUNK / 16;
/// Number of seconds for which a chunk must be unchanged before it becomes a huge page or its
/// tables are moved away. While the index grows, its tables are replaced all the time.
const SETTLED: UnixSeconds = 2;
/// Interval in seconds between two attempts to turn the same chunk into a huge page or to move its
/// tables away. Attempts mostly fail because memory is short.
const RETRY: UnixSeconds = 60;
/// The largest number of attempts per second to turn a chunk into a huge page or to move its tables
/// away, for all chunks together.
const MOST: usize = 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ChunkState {
    /// Tables took or freed pages of the chunk since the last pass over the chunks.
    #[default]
    Changed,
    /// The chunk is unchanged since the last pass. The field is the second from which on the chunk
    /// may become a huge page or its tables may be moved away.
    Settled(UnixSeconds),
    /// The system is turning the chunk into a huge page.
    Joining,
    Joined,
}

#[derive(Clone, Copy, Debug, Default)]
struct Chunk {
    used: usize,
    state: ChunkState,
}

/// A step that makes look-ups in a chunk cheaper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Todo {
    /// Turn the chunk with this number into a huge page.
    Join(usize),
    /// Move the tables of the chunk with this number to other chunks.
    Empty(usize),
}

/// The result of an attempt to turn a chunk into a huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joined {
    /// The chunk is a huge page now. The field is the number of small pages in it that no table
    /// uses: they occupy memory too.
    With(usize),
    /// The chunk became a huge page, but during the attempt tables took or freed some of its pages.
    /// So pages that no table uses may occupy memory, and must be returned to the system.
    Changed,
    Not,
}

/// All chunks, and the state of the current pass over them.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    chunks: Vec<Chunk>,
    looked: UnixSeconds,
    at: usize,
    done: usize,
}

/// Returns the chunks that a run of pages is in.
fn numbers(pages: &Range<usize>) -> Range<usize> {
    pages.start / CHUNK..pages.end.div_ceil(CHUNK)
}

/// Returns the pages of a chunk.
pub(super) fn pages(number: usize) -> Range<usize> {
    number * CHUNK..(number + 1) * CHUNK
}

/// Returns the intersection of two runs.
pub(super) fn common(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let start = one.start.max(other.start);
    start..one.end.min(other.end).max(start)
}

impl Chunks {
    /// Notes that each huge page with pages of `run` is being split into small pages. Returns, for
    /// each of these huge pages, the number of its chunk and how many of its small pages no table
    /// uses.
    pub(super) fn part(&mut self, run: &Range<usize>) -> Vec<(usize, usize)> {
        let mut parted = Vec::new();
        for number in numbers(run) {
            if let Some(chunk) =
                self.chunks.get_mut(number).filter(|c| c.state == ChunkState::Joined)
            {
                chunk.state = ChunkState::Changed;
                parted.push((number, CHUNK - chunk.used));
            }
        }
        parted
    }

    /// Counts pages that a table has taken.
    pub(super) fn take(&mut self, run: &Range<usize>) {
        self.each(run, |chunk, count| chunk.used += count);
    }

    /// Counts pages that a table has freed.
    pub(super) fn give(&mut self, run: &Range<usize>) {
        self.each(run, |chunk, count| chunk.used -= count);
    }

    fn each(&mut self, run: &Range<usize>, change: impl Fn(&mut Chunk, usize)) {
        let numbers = numbers(run);
        if self.chunks.len() < numbers.end {
            self.chunks.resize(numbers.end, Chunk::default());
        }
        for number in numbers {
            let chunk = &mut self.chunks[number];
            debug_assert_ne!(chunk.state, ChunkState::Joined, "parted before");
            change(chunk, common(run, &pages(number)).len());
            chunk.state = ChunkState::Changed;
        }
    }

    /// Returns the number of chunks with tables, and how many of them are full enough to become
    /// huge pages.
    #[cfg(all(test, not(loom)))]
    pub(super) fn count(&self) -> (usize, usize) {
        let used = self.chunks.iter().map(|chunk| chunk.used).filter(|&used| used > 0);
        (used.clone().count(), used.filter(|&used| used >= CHUNK - HOLES).count())
    }

    /// Returns the next step; `None` if none is left, or after [`MOST`] steps in the same second.
    /// `filling` is the chunk to which tables are being moved.
    pub(super) fn next(&mut self, now: UnixSeconds, filling: usize) -> Option<Todo> {
        if now != self.looked {
            (self.looked, self.at, self.done) = (now, 0, 0);
        }
        if self.done == MOST {
            return None;
        }
        while let Some(chunk) = self.chunks.get_mut(self.at) {
            let number = self.at;
            self.at += 1;
            let todo = match chunk.state {
                ChunkState::Changed => {
                    chunk.state = ChunkState::Settled(now + SETTLED);
                    continue;
                }
                ChunkState::Settled(at) if at > now || chunk.used == 0 => continue,
                ChunkState::Settled(_) if chunk.used >= CHUNK - HOLES => Todo::Join(number),
                ChunkState::Settled(_) if number != filling => Todo::Empty(number),
                ChunkState::Settled(_) | ChunkState::Joining | ChunkState::Joined => continue,
            };
            chunk.state = match todo {
                Todo::Join(_) => ChunkState::Joining,
                Todo::Empty(_) => ChunkState::Settled(now + RETRY),
            };
            self.done += 1;
            return Some(todo);
        }
        None
    }

    /// Records the result of the system's attempt to turn a chunk into a huge page.
    pub(super) fn joined(&mut self, number: usize, result: io::Result<()>) -> Joined {
        let chunk = &mut self.chunks[number];
        let still = chunk.state == ChunkState::Joining;
        match result {
            Ok(()) if still => {
                chunk.state = ChunkState::Joined;
                Joined::With(CHUNK - chunk.used)
            }
            Ok(()) => Joined::Changed,
            Err(_) => {
                if still {
                    chunk.state = ChunkState::Settled(self.looked + RETRY);
                }
                Joined::Not
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(pages: Range<usize>) -> Chunks {
        let mut chunks = Chunks::default();
        chunks.take(&pages);
        assert_eq!(chunks.next(100, 99), None, "it has just changed");
        chunks
    }

    #[test]
    fn nearly_full_chunks_are_joined_and_others_are_emptied() {
        let mut chunks = filled(0..CHUNK * 2 - HOLES);
        chunks.take(&(CHUNK * 3..CHUNK * 4 - HOLES - 1));
        assert_eq!(chunks.next(101, 99), None);
        assert_eq!(chunks.next(102, 99), Some(Todo::Join(0)));
        assert_eq!(chunks.joined(0, Ok(())), Joined::With(0));
        assert_eq!(chunks.next(102, 99), Some(Todo::Join(1)));
        assert_eq!(chunks.joined(1, Ok(())), Joined::With(HOLES));
        assert_eq!(chunks.next(103, 3), None, "tables are moved to the last one");
        assert_eq!(chunks.next(104, 99), Some(Todo::Empty(3)));
        assert_eq!(chunks.next(105, 99), None);
        assert_eq!(chunks.part(&(CHUNK - 1..CHUNK + 1)), [(0, 0), (1, HOLES)]);
        assert_eq!(chunks.part(&(0..CHUNK * 4)), []);
    }

    #[test]
    fn a_changed_chunk_starts_its_wait_again() {
        let mut chunks = filled(0..CHUNK);
        chunks.give(&(3..4));
        assert_eq!(chunks.next(102, 99), None);
        chunks.take(&(3..4));
        assert_eq!((chunks.next(103, 99), chunks.next(104, 99)), (None, None));
        assert_eq!(chunks.next(105, 99), Some(Todo::Join(0)));
    }

    #[test]
    fn a_chunk_that_changes_while_it_is_joined_does_not_count_as_joined() {
        let mut chunks = filled(0..CHUNK);
        assert_eq!(chunks.next(102, 99), Some(Todo::Join(0)));
        chunks.give(&(3..4));
        assert_eq!(chunks.joined(0, Ok(())), Joined::Changed);
        assert_eq!(chunks.part(&(0..CHUNK)), []);
    }

    #[test]
    fn a_failed_join_is_retried_later() {
        let mut chunks = filled(0..CHUNK);
        assert_eq!(chunks.next(102, 99), Some(Todo::Join(0)));
        assert_eq!(chunks.joined(0, Err(io::ErrorKind::OutOfMemory.into())), Joined::Not);
        assert_eq!((chunks.next(161, 99), chunks.next(162, 99)), (None, Some(Todo::Join(0))));
    }

    #[test]
    fn joins_per_second_are_limited() {
        let mut chunks = filled(0..CHUNK * 2 * MOST);
        let in_second =
            |chunks: &mut Chunks, now| std::iter::from_fn(|| chunks.next(now, 99)).count();
        assert_eq!([102, 103, 104].map(|now| in_second(&mut chunks, now)), [MOST, MOST, 0]);
    }
}
