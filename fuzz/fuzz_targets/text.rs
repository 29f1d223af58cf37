//! The text protocol: for any bytes, the result does not depend on how the stream is cut into
//! packets. No byte is consumed twice or before it has arrived, and every key has a legal length.

#![no_main]

use larder_protocol::meta::Flags;
use larder_protocol::text::{KeysEnd, Request, parse, parse_common, parse_keys};
use larder_protocol::{KEY_LEN_MAX, LINE_LEN_MAX, Parse, Then};
use libfuzzer_sys::fuzz_target;

/// The longest value in bytes that is buffered; longer ones are discarded as they arrive.
const LONGEST_VALUE: usize = 64 << 10;

/// What a connection expects next.
enum State {
    Command,
    Keys,
    Swallow(usize),
    SkipLine,
    Closed,
}

/// A connection that records the requests that it parsed.
struct Reader {
    state: State,
    input: Vec<u8>,
    heard: Vec<String>,
    /// True if the parser closed the connection because an incomplete line was too long. How early
    /// the parser notices such a line depends on the packets. So the last request may then differ.
    cut_short: bool,
}

impl Reader {
    fn new() -> Self {
        Reader { state: State::Command, input: Vec::new(), heard: Vec::new(), cut_short: false }
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        while let Some(consumed) = self.step() {
            assert!(consumed <= self.input.len(), "bytes were taken before they came");
            self.input.drain(..consumed);
        }
    }

    /// Parses or discards a part of the input. Returns the number of consumed bytes, or `None` if
    /// more bytes must arrive.
    fn step(&mut self) -> Option<usize> {
        if self.input.is_empty() {
            return None;
        }
        match self.state {
            State::Command => self.command(),
            State::Keys => self.keys(),
            State::Swallow(left) => {
                let taken = left.min(self.input.len());
                self.state =
                    if left == taken { State::Command } else { State::Swallow(left - taken) };
                Some(taken)
            }
            State::SkipLine => {
                let end = self.input.iter().position(|&byte| byte == b'\n');
                if end.is_some() {
                    self.state = State::Command;
                }
                Some(end.map_or(self.input.len(), |end| end + 1))
            }
            State::Closed => None,
        }
    }

    fn command(&mut self) -> Option<usize> {
        let mut keys: Vec<&[u8]> = Vec::new();
        let parsed = parse(&self.input, &mut keys);
        let mut common_keys: Vec<&[u8]> = Vec::new();
        parse_common(&self.input, &mut common_keys, |request, consumed| {
            assert!(parsed == Parse::Request { request, consumed }, "the parsers differ");
        });
        assert!(common_keys.is_empty() || common_keys == keys, "the parsers find other keys");
        for key in &keys {
            assert!((1..=KEY_LEN_MAX).contains(&key.len()), "a key of {} bytes", key.len());
        }
        match parsed {
            Parse::NeedMore { total } => {
                assert!(total > self.input.len(), "more is asked for than is missing");
                assert!(keys.is_empty(), "keys of a request that is not whole");
                None
            }
            Parse::NeedValue { request, header, value, trailer } => {
                assert!(header <= self.input.len());
                let whole = header + value + trailer;
                assert!(self.input.len() < whole, "a value is asked for that is there");
                if value <= LONGEST_VALUE {
                    return None;
                }
                self.heard.push(format!("{request:?} {keys:?} and {value} bytes"));
                self.state = State::Swallow(value + trailer);
                Some(header)
            }
            Parse::Request { request, consumed } => {
                assert!(consumed > 0);
                let mut heard = format!("{request:?} {keys:?}");
                match request {
                    Request::Meta(meta) => heard += &format!(" {:?}", Flags::parse(&meta)),
                    Request::Get(get) if get.keys_follow => self.state = State::Keys,
                    _ => {}
                }
                self.heard.push(heard);
                Some(consumed)
            }
            Parse::Refused { reply, consumed, then } => {
                assert!(keys.is_empty(), "keys of a refused request");
                assert!(reply.is_empty() || reply.ends_with("\r\n"));
                self.heard.push(format!("refused {reply:?} {then:?}"));
                self.state = match then {
                    Then::Continue => State::Command,
                    Then::Swallow(0) => State::Command,
                    Then::Swallow(bytes) => State::Swallow(bytes),
                    Then::SkipLine => State::SkipLine,
                    Then::Close => State::Closed,
                };
                self.cut_short |= then == Then::Close && self.input.len() > LINE_LEN_MAX;
                Some(consumed)
            }
        }
    }

    fn keys(&mut self) -> Option<usize> {
        let mut keys: Vec<&[u8]> = Vec::new();
        let found = parse_keys(&self.input, 3, &mut keys);
        assert!(keys.len() <= 3, "more keys than asked for");
        for key in keys {
            assert!((1..=KEY_LEN_MAX).contains(&key.len()), "a key of {} bytes", key.len());
            self.heard.push(format!("key {key:?}"));
        }
        match found.end {
            KeysEnd::More => assert!(found.consumed > 0),
            KeysEnd::NeedMore => return (found.consumed > 0).then_some(found.consumed),
            KeysEnd::Line => {
                self.heard.push("end of keys".into());
                self.state = State::Command;
            }
            KeysEnd::Refused(reply) => {
                self.heard.push(format!("refused {reply:?}"));
                self.state = State::SkipLine;
            }
        }
        Some(found.consumed)
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((stream, packets)) = larder_fuzz::packets(data) else { return };
    let mut whole = Reader::new();
    whole.receive(stream);
    let mut pieces = Reader::new();
    packets.into_iter().for_each(|packet| pieces.receive(packet));
    if whole.cut_short || pieces.cut_short {
        let both = whole.heard.len().min(pieces.heard.len());
        let same = both.saturating_sub(1);
        assert_eq!(whole.heard[..same], pieces.heard[..same]);
    } else {
        assert_eq!(whole.heard, pieces.heard, "the packets changed the meaning");
    }
});
