//! The input and output of a [`Service::process`](super::Service::process) call. Both usually lie
//! in memory that all connections of a worker share, so an idle connection owns no buffer.

/// The unconsumed bytes of a connection, during one [`Service::process`](super::Service::process)
/// call. The event loop keeps the bytes that the service does not consume. In the next call, it
/// passes them again, followed by new input.
#[derive(Debug)]
pub struct InputBuffer<'a> {
    bytes: &'a [u8],
    consumed: usize,
    postponed: bool,
    expects_value: bool,
}

impl<'a> InputBuffer<'a> {
    /// Creates an input in which all of `bytes` are unconsumed.
    pub fn new(bytes: &'a [u8]) -> Self {
        InputBuffer { bytes, consumed: 0, postponed: false, expects_value: false }
    }

    /// Returns all unconsumed bytes. The slice stays valid after later calls of
    /// [`consume`](Self::consume), so a batch may refer to keys of consumed commands.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        &self.bytes[self.consumed..]
    }

    /// Consumes the first `n` unconsumed bytes.
    ///
    /// # Panics
    /// Panics if fewer than `n` bytes are unconsumed.
    #[inline]
    pub fn consume(&mut self, n: usize) {
        assert!(n <= self.bytes.len() - self.consumed, "consumed more input than there is");
        self.consumed += n;
    }

    /// Postpones the unconsumed bytes to the next turn. A service does so if the commands executed
    /// so far may have taken long. If the service then returns [`Flow::Read`](super::Flow::Read) or
    /// [`Flow::Hold`](super::Flow::Hold), the loop calls the service again without waiting for an
    /// event.
    pub fn postpone(&mut self) {
        self.postponed = self.consumed < self.bytes.len();
    }

    /// Returns true if the service has [postponed](Self::postpone) the unconsumed bytes.
    #[inline]
    pub fn is_postponed(&self) -> bool {
        self.postponed
    }

    /// Tells the loop that the next bytes of the input belong to the request of a long value, and
    /// that the service may [receive](super::Service::receive) them into the value's memory.
    pub fn expect_value(&mut self) {
        self.expects_value = true;
    }

    /// Returns true if the service [expects](Self::expect_value) bytes of a long value.
    #[inline]
    pub fn expects_value(&self) -> bool {
        self.expects_value
    }

    /// Returns the number of bytes consumed in this call.
    #[inline]
    pub fn consumed(&self) -> usize {
        self.consumed
    }
}

/// Output memory of up to this many bytes is kept for later replies, see [`OutputMemory::recycle`].
const REPLIES_KEPT: usize = 256 << 10;

/// Memory for replies, which grows when a reply needs more. The replies of later calls of the
/// service use the same memory.
#[derive(Debug, Default)]
pub struct OutputMemory {
    /// All bytes up to the vector's length are initialised, so that parts of the memory can be
    /// handed out without unsafe code.
    memory: Vec<u8>,
    filled: usize,
}

impl OutputMemory {
    /// Allocates `capacity` bytes. The memory grows only when replies exceed this capacity.
    pub fn with_capacity(capacity: usize) -> Self {
        OutputMemory { memory: vec![0; capacity], filled: 0 }
    }

    /// Returns the memory of an event loop for replies of up to `limit` bytes.
    pub(super) fn of_loop(limit: usize) -> Self {
        OutputMemory::with_capacity(limit + (16 << 10))
    }

    /// Empties the memory of an event loop. If the memory has grown beyond [`REPLIES_KEPT`] and
    /// twice the output limit, replaces it by memory of the usual size.
    #[inline]
    pub(super) fn recycle(&mut self, limit: usize) {
        self.clear();
        if self.memory.len() > REPLIES_KEPT.max(2 * limit) {
            *self = OutputMemory::of_loop(limit);
        }
    }

    /// Returns a writer with a soft limit of `limit` bytes.
    pub fn buffer(&mut self, limit: usize) -> OutputBuffer<'_> {
        OutputBuffer { memory: self, limit, withheld: 0 }
    }

    /// Returns the bytes written.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.memory[..self.filled]
    }

    /// Discards the bytes written and keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.filled = 0;
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

/// The writer for replies. The limit is soft: every write succeeds, but a service that finds the
/// output [full](Self::is_full) should stop and return [`Flow::Drain`](super::Flow::Drain).
#[derive(Debug)]
pub struct OutputBuffer<'a> {
    memory: &'a mut OutputMemory,
    limit: usize,
    /// Number of bytes that count against the limit although they are not in `memory`. The service
    /// keeps them itself and sends them later.
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

    /// Returns memory for the next `n` bytes, to be written in place. [`advance`](Self::advance)
    /// makes them part of the output. The memory is always initialised, but its content is
    /// unspecified: it may hold old replies.
    #[inline]
    pub fn room(&mut self, n: usize) -> &mut [u8] {
        self.memory.room(n)
    }

    /// Appends to the output the first `n` bytes of the memory that [`room`](Self::room) last
    /// returned.
    ///
    /// # Panics
    /// Panics if fewer than `n` bytes are allocated after the output.
    #[inline]
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.memory.memory.len() - self.memory.filled, "advanced beyond the room");
        self.memory.filled += n;
    }

    /// Removes all bytes after the first `len`, for example an incomplete reply.
    pub fn truncate(&mut self, len: usize) {
        self.memory.filled = self.memory.filled.min(len);
    }

    /// Returns the number of bytes written and not yet sent.
    #[inline]
    pub fn len(&self) -> usize {
        self.memory.filled
    }

    /// Returns true if nothing was written.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.memory.filled == 0
    }

    /// Returns the soft limit, in bytes.
    #[inline]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns true if the bytes written, plus the bytes added by
    /// [`count_against_limit`](Self::count_against_limit), reach the limit.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.memory.filled + self.withheld >= self.limit
    }

    /// Adds `bytes` to the bytes that count against the limit during this call. The service keeps
    /// such bytes itself, and sends them in a later call.
    pub fn count_against_limit(&mut self, bytes: usize) {
        self.withheld += bytes;
    }

    /// Returns the bytes written and not yet sent.
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
    fn consuming_too_much_panics() {
        InputBuffer::new(b"ab").consume(3);
    }

    #[test]
    fn output_grows_and_reports_when_it_is_full() {
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
        output.count_against_limit(2);
        assert!(!output.is_full());
        output.count_against_limit(1);
        assert!(output.is_full());
        memory.clear();
        assert!(memory.bytes().is_empty());
        assert!(memory.memory.len() >= 26);
    }
}
