//! A server that only sends replies and stores nothing. It parses just enough of the text and meta
//! protocols to send as many bytes as a server that has every key. So its cost is mostly that of
//! the sockets and the kernel. The lab compares servers with it, because no server can be faster.
//! With a device, this server begins one read for each key of a get, and answers when all have
//! ended. No server that has nothing in memory can be faster than that.

use std::time::Duration;

use larder_server::net::{
    ConnectionId, Flow, Incoming, InputBuffer, MAX_INPUT_HELD, OutputBuffer, Peer, Service,
};

use super::reads::Reads;

/// The responder's service; each worker has one.
#[derive(Debug)]
pub(super) struct NullService {
    value: Vec<u8>,
    /// ` 0 <size>\r\n<value>\r\n`: the part of a reply after `VALUE <key>`.
    text_value: Vec<u8>,
    /// Like `text_value`, for `gets`: with a cas id.
    text_value_cas: Vec<u8>,
    /// `VA <size>`.
    meta_value: Vec<u8>,
    /// The device reads for keys of gets; `None` without a device.
    pub(super) reads: Option<Reads>,
}

/// A connection's position in its stream of commands.
#[derive(Clone, Copy, Debug, Default)]
enum Position {
    /// At the beginning of a command.
    #[default]
    Command,
    /// At the keys of a get whose reads have not begun.
    Get { cas: bool },
    /// At the keys of a get whose reads have begun.
    Keys { cas: bool },
    /// In the body of a set, with `left` bytes to come.
    Body { left: usize, reply: &'static [u8] },
}

/// State of a connection.
#[derive(Debug)]
pub(super) struct ConnectionState {
    position: Position,
    id: ConnectionId,
}

impl NullService {
    /// Creates a service that answers gets with values of `value_size` bytes.
    pub(super) fn new(value_size: usize) -> Self {
        let value = vec![b'x'; value_size];
        let text = |cas: &str| {
            let mut text = format!(" 0 {value_size}{cas}\r\n").into_bytes();
            text.extend_from_slice(&value);
            text.extend_from_slice(b"\r\n");
            text
        };
        NullService {
            text_value: text(""),
            text_value_cas: text(" 1"),
            meta_value: format!("VA {value_size}").into_bytes(),
            value,
            reads: None,
        }
    }

    /// Returns true if the connection waits for reads.
    fn reads_for(&self, id: ConnectionId) -> bool {
        self.reads.as_ref().is_some_and(|reads| reads.awaits(id))
    }

    /// Begins one read for each key of a get. Returns `None` if the line of the get is incomplete.
    fn begin_reads(&mut self, id: ConnectionId, input: &InputBuffer<'_>) -> Option<()> {
        let Some(reads) = &mut self.reads else { return Some(()) };
        let end = input.bytes().iter().position(|&byte| byte == b'\n')?;
        let words = input.bytes()[..end].split(|&byte| byte == b' ');
        reads.begin(id, words.filter(|word| !matches!(word, [] | [b'\r'])).count());
        Some(())
    }

    /// Answers the keys of a get until its line ends, the output is full or more input is needed.
    fn keys(
        &self,
        cas: bool,
        input: &mut InputBuffer<'_>,
        out: &mut OutputBuffer<'_>,
    ) -> KeysProgress {
        loop {
            if out.is_full() {
                return KeysProgress::Full;
            }
            let bytes = input.bytes();
            let Some(end) = bytes.iter().position(|b| matches!(b, b' ' | b'\n')) else {
                return KeysProgress::Missing;
            };
            let word = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
            if !word.is_empty() {
                out.extend(b"VALUE ");
                out.extend(word);
                out.extend(if cas { &self.text_value_cas } else { &self.text_value });
            }
            let last = bytes[end] == b'\n';
            input.consume(end + 1);
            if last {
                out.extend(b"END\r\n");
                return KeysProgress::Ended;
            }
        }
    }

    fn meta_get(&self, wants_value: bool, out: &mut OutputBuffer<'_>) {
        if wants_value {
            out.extend(&self.meta_value);
            out.extend(b"\r\n");
            out.extend(&self.value);
            out.extend(b"\r\n");
        } else {
            out.extend(b"HD\r\n");
        }
    }

    /// Executes a command whose line is complete, except a get.
    fn command(&self, line: &[u8], out: &mut OutputBuffer<'_>) -> Option<Position> {
        let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        let verb = line.split(|byte| *byte == b' ').next().unwrap_or_default();
        let quiet = line.ends_with(b" noreply") || verb == b"ms" && line.ends_with(b" q");
        let mut body = |position: usize, reply: &'static [u8]| {
            let size = words.nth(position).and_then(|word| std::str::from_utf8(word).ok());
            let size = size.and_then(|word| word.parse::<usize>().ok()).unwrap_or(0);
            Position::Body { left: size + 2, reply: if quiet { b"" } else { reply } }
        };
        let reply: &[u8] = match verb {
            b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" => {
                return Some(body(4, b"STORED\r\n"));
            }
            b"ms" => return Some(body(2, b"HD\r\n")),
            b"mg" => {
                self.meta_get(words.skip(2).any(|word| word == b"v"), out);
                b""
            }
            b"incr" | b"decr" => b"1\r\n",
            b"delete" => b"DELETED\r\n",
            b"touch" => b"TOUCHED\r\n",
            b"md" | b"ma" => b"HD\r\n",
            b"mn" => b"MN\r\n",
            b"version" => b"VERSION 0\r\n",
            b"stats" => b"END\r\n",
            b"flush_all" | b"verbosity" => b"OK\r\n",
            b"quit" => return None,
            _ => b"ERROR\r\n",
        };
        if !quiet {
            out.extend(reply);
        }
        Some(Position::Command)
    }
}

enum KeysProgress {
    Ended,
    Full,
    Missing,
}

impl Service for NullService {
    type Connection = ConnectionState;

    fn turn(&mut self) {
        self.reads.iter_mut().for_each(Reads::turn);
    }

    fn sleep(&mut self) {
        self.reads.iter_mut().for_each(Reads::sleep);
    }

    fn polls(&mut self) -> bool {
        self.reads.as_mut().is_some_and(Reads::polls)
    }

    fn wakes_within(&self) -> Option<Duration> {
        None
    }

    fn keeps(&self, _connection: &ConnectionState) -> usize {
        0
    }

    fn can_give_up(&self, _connection: &ConnectionState) -> bool {
        false
    }

    fn gives_up(&mut self, _connection: &mut ConnectionState) -> bool {
        false
    }

    // The responder expects no values.
    fn receive(&mut self, _connection: &mut ConnectionState, _incoming: &mut Incoming<'_>) {}

    fn connect(&mut self, _peer: Peer, id: ConnectionId) -> ConnectionState {
        ConnectionState { position: Position::default(), id }
    }

    fn foresee<'i>(&mut self, _inputs: impl Iterator<Item = &'i [u8]>) {}

    fn process(
        &mut self,
        connection: &mut ConnectionState,
        input: &mut InputBuffer<'_>,
        output: &mut OutputBuffer<'_>,
    ) -> Flow {
        if self.reads.as_ref().is_some_and(|reads| reads.failed) {
            return Flow::Close;
        }
        loop {
            match connection.position {
                Position::Get { cas } => {
                    if self.begin_reads(connection.id, input).is_none() {
                        return if input.bytes().len() < MAX_INPUT_HELD {
                            Flow::Read
                        } else {
                            Flow::Close
                        };
                    }
                    connection.position = Position::Keys { cas };
                }
                Position::Keys { .. } if self.reads_for(connection.id) => return Flow::Park,
                Position::Keys { cas } => match self.keys(cas, input, output) {
                    KeysProgress::Ended => connection.position = Position::Command,
                    KeysProgress::Full => return Flow::Drain,
                    KeysProgress::Missing => return Flow::Read,
                },
                Position::Body { left, reply } => {
                    let here = left.min(input.bytes().len());
                    input.consume(here);
                    if here < left {
                        connection.position = Position::Body { left: left - here, reply };
                        return Flow::Read;
                    }
                    output.extend(reply);
                    connection.position = Position::Command;
                }
                Position::Command => {
                    if output.is_full() {
                        return Flow::Drain;
                    }
                    let bytes = input.bytes();
                    if bytes.starts_with(b"get ") {
                        input.consume(4);
                        connection.position = Position::Get { cas: false };
                        continue;
                    }
                    if bytes.starts_with(b"gets ") {
                        input.consume(5);
                        connection.position = Position::Get { cas: true };
                        continue;
                    }
                    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
                        return Flow::Read;
                    };
                    let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
                    input.consume(end + 1);
                    match self.command(line, output) {
                        Some(position) => connection.position = position,
                        None => return Flow::Close,
                    }
                }
            }
        }
    }

    fn awaits(&self, connection: &mut ConnectionState) -> bool {
        self.reads_for(connection.id)
    }

    fn disconnect(&mut self, _connection: ConnectionState) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_server::net::{Options, OutputMemory, open};

    /// Feeds `bytes` to a service in pieces of `step` bytes, as an event loop would. The output
    /// buffer has room for `limit` bytes. Returns all replies and the last `Flow`.
    fn answer(bytes: &[u8], step: usize, limit: usize) -> (Vec<u8>, Flow) {
        let mut responder = NullService::new(3);
        let mut progress = responder.connect(Peer::Unix, ConnectionId::new(1));
        let mut memory = OutputMemory::default();
        let (mut held, mut all, mut flow) = (Vec::new(), Vec::new(), Flow::Read);
        for piece in bytes.chunks(step) {
            held.extend_from_slice(piece);
            loop {
                let mut input = InputBuffer::new(&held);
                flow = responder.process(&mut progress, &mut input, &mut memory.buffer(limit));
                let consumed = input.consumed();
                held.drain(..consumed);
                all.extend_from_slice(memory.bytes());
                memory.clear();
                if flow != Flow::Drain {
                    break;
                }
            }
        }
        (all, flow)
    }

    #[test]
    fn answers_with_the_right_number_of_bytes() {
        let asked = b"get a\r\nget a bb  c\r\ngets d\r\nset k 0 0 5\r\n12\r\n5\r\nincr n 1\r\n\
            set q 0 0 1 noreply\r\nx\r\nmg k v\r\nmg k t\r\nms k 2\r\nab\r\nms k 2 q\r\nab\r\nmn\r\nnonsense\r\nquit\r\n";
        let expected = b"VALUE a 0 3\r\nxxx\r\nEND\r\n\
            VALUE a 0 3\r\nxxx\r\nVALUE bb 0 3\r\nxxx\r\nVALUE c 0 3\r\nxxx\r\nEND\r\n\
            VALUE d 0 3 1\r\nxxx\r\nEND\r\nSTORED\r\n1\r\n\
            VA 3\r\nxxx\r\nHD\r\nHD\r\nMN\r\nERROR\r\n";
        for step in [1, 2, 3, 7, 1000] {
            for limit in [1, 20, 1000] {
                let (got, flow) = answer(asked, step, limit);
                assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(expected));
                assert_eq!(flow, Flow::Close);
            }
        }
    }

    #[test]
    fn keys_are_answered_when_as_many_reads_have_ended() {
        use larder_disk::FileDevice;
        let path = std::env::temp_dir().join(format!("larder-responder-{}", std::process::id()));
        let device = FileDevice::open(&path, Some(1 << 20)).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (_control, workers) = open(Options::default(), 1).unwrap();
        let mut responder = NullService::new(3);
        let Ok(reads) = Reads::new(&device, 3, workers[0].event(), workers[0].waker()) else {
            return eprintln!("io_uring is refused here: left out");
        };
        responder.reads = Some(reads);
        let mut progress = responder.connect(Peer::Unix, ConnectionId::new(1));
        let mut memory = OutputMemory::default();
        let mut input = InputBuffer::new(b"get a bb \r\nget c\r\n");
        for expected in [
            &b"VALUE a 0 3\r\nxxx\r\nVALUE bb 0 3\r\nxxx\r\nEND\r\n"[..],
            b"VALUE c 0 3\r\nxxx\r\nEND\r\n",
        ] {
            let flow = responder.process(&mut progress, &mut input, &mut memory.buffer(1000));
            assert_eq!(flow, Flow::Park);
            responder.sleep();
            while responder.awaits(&mut progress) {
                responder.turn();
            }
            // Calls `keys`, because `process` would also begin the reads of the next get.
            let mut output = memory.buffer(1000);
            let keys = responder.keys(false, &mut input, &mut output);
            assert!(matches!(keys, KeysProgress::Ended));
            assert_eq!(output.bytes(), expected);
            progress.position = Position::Command;
            memory.clear();
        }
        let flow = responder.process(&mut progress, &mut input, &mut memory.buffer(1000));
        assert_eq!(flow, Flow::Read);
    }
}
