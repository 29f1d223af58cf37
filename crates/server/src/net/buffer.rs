//! The two ends of a [`Service::process`](super::Service::process) call: the bytes a client sent
//! and the bytes it gets back. Both usually stand in memory that a worker shares among all its
//! connections, so an idle connection owns no buffer at all.

/// The unconsumed bytes of a connection, for the length of one
/// [`Service::process`](super::Service::process) call. What is left unconsumed is kept and comes
/// again, with more behind it.
#[derive(Debug)]
pub struct InputBuffer<'a> {
    bytes: &'a [u8],
    consumed: usize,
    postponed: bool,
}

impl<'a> InputBuffer<'a> {
    /// An input of these bytes, none of them consumed.
    pub fn new(bytes: &'a [u8]) -> Self {
        InputBuffer { bytes, consumed: 0, postponed: false }
    }

    /// All unconsumed bytes. The slice outlives later calls of [`consume`](Self::consume): a batch
    /// may hold keys of commands that are consumed already.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        &self.bytes[self.consumed..]
    }

    /// Forgets the first `n` unconsumed bytes.
    ///
    /// # Panics
    /// If there are fewer than `n`.
    #[inline]
    pub fn consume(&mut self, n: usize) {
        assert!(n <= self.bytes.len() - self.consumed, "consumed more input than there is");
        self.consumed += n;
    }

    /// The rest waits for the next turn, because what was executed may have taken long. A service that
    /// answers [`Flow::Read`](super::Flow::Read) or [`Flow::Hold`](super::Flow::Hold) is called again
    /// without any event.
    pub fn postpone(&mut self) {
        self.postponed = self.consumed < self.bytes.len();
    }

    /// Whether the service has [postponed](Self::postpone) what is left.
    #[inline]
    pub fn is_postponed(&self) -> bool {
        self.postponed
    }

    /// How many bytes were consumed since the input was made.
    #[inline]
    pub fn consumed(&self) -> usize {
        self.consumed
    }
}

/// Memory that replies are written to; reused from call to call, grown when a reply needs it.
#[derive(Debug, Default)]
pub struct OutputMemory {
    /// Initialised up to its length, so that room can be handed out without unsafe code.
    memory: Vec<u8>,
    filled: usize,
}

impl OutputMemory {
    /// Memory for `capacity` bytes before it has to grow.
    pub fn with_capacity(capacity: usize) -> Self {
        OutputMemory { memory: vec![0; capacity], filled: 0 }
    }

    /// The way a service writes to it.
    pub fn buffer(&mut self, limit: usize) -> OutputBuffer<'_> {
        OutputBuffer { memory: self, limit, withheld: 0 }
    }

    /// What was written.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.memory[..self.filled]
    }

    /// Forgets what was written, keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// The bytes of memory behind it.
    pub fn capacity(&self) -> usize {
        self.memory.len()
    }

    #[cold]
    fn grow(&mut self, needed: usize) {
        self.memory.resize(needed.next_power_of_two().max(256), 0);
    }

    #[inline]
    fn room(&mut self, n: usize) -> &mut [u8] {
        if self.memory.len() - self.filled < n {
            self.grow(self.filled + n);
        }
        &mut self.memory[self.filled..self.filled + n]
    }
}

/// Where replies go. The limit is soft: nothing is refused, but a service that finds the output
/// [full](Self::is_full) stops and answers [`Flow::Drain`](super::Flow::Drain).
#[derive(Debug)]
pub struct OutputBuffer<'a> {
    memory: &'a mut OutputMemory,
    limit: usize,
    /// Bytes that the service keeps elsewhere, to be sent later.
    withheld: usize,
}

impl OutputBuffer<'_> {
    /// Appends `bytes`.
    #[inline]
    pub fn extend(&mut self, bytes: &[u8]) {
        self.memory.room(bytes.len()).copy_from_slice(bytes);
        self.memory.filled += bytes.len();
    }

    /// Appends one byte.
    #[inline]
    pub fn push(&mut self, byte: u8) {
        self.memory.room(1)[0] = byte;
        self.memory.filled += 1;
    }

    /// The next `n` bytes, to be written in place; [`advance`](Self::advance) makes them part of
    /// the output. What they hold before is unspecified (old replies), never uninitialised.
    #[inline]
    pub fn room(&mut self, n: usize) -> &mut [u8] {
        self.memory.room(n)
    }

    /// Appends the first `n` bytes of what [`room`](Self::room) gave.
    ///
    /// # Panics
    /// If the room was smaller.
    #[inline]
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.memory.memory.len() - self.memory.filled, "advanced beyond the room");
        self.memory.filled += n;
    }

    /// Takes back everything behind the first `len` bytes: a reply that could not be finished.
    pub fn truncate(&mut self, len: usize) {
        self.memory.filled = self.memory.filled.min(len);
    }

    /// Bytes written and not yet sent.
    #[inline]
    pub fn len(&self) -> usize {
        self.memory.filled
    }

    /// Whether nothing was written.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.memory.filled == 0
    }

    /// The soft limit, in bytes.
    #[inline]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Whether the limit is reached, with what is [withheld](Self::withhold).
    #[inline]
    pub fn is_full(&self) -> bool {
        self.memory.filled + self.withheld >= self.limit
    }

    /// Counts `bytes` against the limit for the rest of this call: the service keeps them itself, to
    /// send them in a later one.
    pub fn withhold(&mut self, bytes: usize) {
        self.withheld += bytes;
    }

    /// What was written and not yet sent.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_slices_outlive_consuming() {
        let mut input = InputBuffer::new(b"get a\r\nget b\r\n");
        let first = &input.bytes()[..7];
        input.consume(7);
        assert_eq!((first, input.bytes()), (&b"get a\r\n"[..], &b"get b\r\n"[..]));
        input.consume(7);
        assert!(input.bytes().is_empty());
        assert_eq!(input.consumed(), 14);
    }

    #[test]
    #[should_panic(expected = "consumed more")]
    fn consuming_too_much_is_a_bug() {
        InputBuffer::new(b"ab").consume(3);
    }

    #[test]
    fn output_grows_and_knows_its_limit() {
        let mut memory = OutputMemory::with_capacity(4);
        let mut output = memory.buffer(8);
        output.extend(b"VALUE");
        output.push(b' ');
        assert!(!output.is_full());
        output.room(20)[..3].copy_from_slice(b"123");
        output.advance(3);
        assert!(output.is_full());
        assert_eq!(output.bytes(), b"VALUE 123");
        output.truncate(5);
        assert_eq!(output.len(), 5);
        output.withhold(2);
        assert!(!output.is_full());
        output.withhold(1);
        assert!(output.is_full());
        memory.clear();
        assert!(memory.bytes().is_empty());
        assert!(memory.capacity() >= 26);
    }
}
