//! Memory that holds small replies until the kernel has sent them. Sends are queued during a turn,
//! and submitted together with the next wait. The bytes of a send must stay in place until the send
//! completes. So the bytes of all sends are copied one after the other into chunks. A chunk is
//! reused once all its sends have completed.

/// The longest reply that is copied into a chunk, in bytes. A longer reply is sent by its own
/// system call, because copying it would cost more than the call.
pub(super) const STAGED_MAX: usize = 4 << 10;
const CHUNK: usize = 64 << 10;
/// Up to this many chunks are kept for later replies although they have no sends in flight.
const KEPT: usize = 8;

/// The location of staged bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Staged {
    chunk: u32,
    start: u32,
    len: u32,
}

impl Staged {
    pub(super) fn len(self) -> usize {
        self.len as usize
    }
}

#[derive(Debug)]
struct Chunk {
    memory: Box<[u8]>,
    filled: usize,
    /// Number of sends from this chunk that have not completed.
    in_flight: usize,
}

/// The chunks. Invariant: the bytes of a chunk neither move nor change while its `in_flight` is not
/// 0.
#[derive(Debug)]
pub(super) struct Staging {
    chunks: Vec<Chunk>,
    current: usize,
}

impl Staging {
    pub(super) fn new() -> Self {
        Staging { chunks: vec![Chunk::new()], current: 0 }
    }

    /// Copies `bytes`, at most [`STAGED_MAX`] of them, to a place where they stay until
    /// [`release`](Self::release).
    #[inline]
    pub(super) fn stage(&mut self, bytes: &[u8]) -> Staged {
        assert!(bytes.len() <= STAGED_MAX);
        if self.chunks[self.current].filled + bytes.len() > CHUNK {
            self.advance();
        }
        let chunk = &mut self.chunks[self.current];
        let start = chunk.filled;
        chunk.memory[start..start + bytes.len()].copy_from_slice(bytes);
        chunk.filled += bytes.len();
        chunk.in_flight += 1;
        Staged { chunk: self.current as u32, start: start as u32, len: bytes.len() as u32 }
    }

    #[cold]
    fn advance(&mut self) {
        self.current = match self.chunks.iter().position(|chunk| chunk.in_flight == 0) {
            // The first free chunk is used, so that chunks at the end become free and `shrink` can
            // release their memory.
            Some(free) => free,
            None => {
                self.chunks.push(Chunk::new());
                self.chunks.len() - 1
            }
        };
        self.chunks[self.current].filled = 0;
    }

    pub(super) fn bytes(&self, staged: Staged) -> &[u8] {
        &self.chunks[staged.chunk as usize].memory[staged.start as usize..][..staged.len()]
    }

    /// Releases the bytes of a send that has completed.
    #[inline]
    pub(super) fn release(&mut self, staged: Staged) {
        let chunk = &mut self.chunks[staged.chunk as usize];
        chunk.in_flight -= 1;
        if chunk.in_flight == 0 {
            chunk.filled = 0;
            self.shrink();
        }
    }

    /// Frees chunks at the end of the list that have no sends in flight.
    fn shrink(&mut self) {
        if self.chunks.len() <= KEPT {
            return;
        }
        let is_free = |chunk: &Chunk| chunk.in_flight == 0;
        if is_free(&self.chunks[self.current])
            && let Some(first) = self.chunks.iter().position(is_free)
        {
            self.current = first;
        }
        let last_used = self.chunks.iter().rposition(|chunk| !is_free(chunk));
        let used = self.current.max(last_used.unwrap_or(0)) + 1;
        self.chunks.truncate(used.max(KEPT));
    }
}

impl Chunk {
    fn new() -> Self {
        Chunk { memory: vec![0; CHUNK].into(), filled: 0, in_flight: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staged_bytes_stay_until_released() {
        let mut staging = Staging::new();
        let staged: Vec<(Staged, Vec<u8>, *const u8)> = (0..100u8)
            .map(|n| {
                let bytes = vec![n; 1 + usize::from(n) * 40];
                let staged = staging.stage(&bytes);
                (staged, bytes, staging.bytes(staged).as_ptr())
            })
            .collect();
        let chunks = staging.chunks.len();
        assert!(chunks > 1);
        for (at, bytes, address) in &staged {
            assert_eq!(staging.bytes(*at), bytes);
            assert_eq!(staging.bytes(*at).as_ptr(), *address);
        }
        for (at, ..) in staged {
            staging.release(at);
        }
        for _ in 0..1000 {
            let at = staging.stage(&[7; STAGED_MAX]);
            staging.release(at);
        }
        assert!(staging.chunks.len() <= chunks);
    }

    #[test]
    fn chunks_of_a_burst_are_freed() {
        let mut staging = Staging::new();
        let burst: Vec<Staged> = (0..10_000).map(|_| staging.stage(&[7; STAGED_MAX])).collect();
        assert!(staging.chunks.len() > 500);
        burst.into_iter().for_each(|at| staging.release(at));
        // Later replies use the first free chunk. So the other chunks, which only the burst of
        // replies above needed, can be freed.
        for _ in 0..100 {
            let at = staging.stage(&[8; STAGED_MAX]);
            staging.release(at);
        }
        assert!(staging.chunks.len() <= KEPT, "{} chunks", staging.chunks.len());
    }
}
