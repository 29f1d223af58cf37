//! The binary protocol: for any bytes, the result does not depend on how the stream is cut into
//! packets. No byte is consumed twice or before it has arrived, and every key has a legal length.

#![no_main]

use larder_protocol::binary::parse;
use larder_protocol::{KEY_LEN_MAX, Parse, Then};
use libfuzzer_sys::fuzz_target;

/// The longest value in bytes that is buffered; longer ones are discarded as they arrive.
const LONGEST_VALUE: usize = 64 << 10;

/// A connection that records the requests that it parsed.
#[derive(Default)]
struct Reader {
    input: Vec<u8>,
    heard: Vec<String>,
    swallow: usize,
    closed: bool,
}

impl Reader {
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
        if self.closed || self.input.is_empty() {
            return None;
        }
        if self.swallow > 0 {
            let taken = self.swallow.min(self.input.len());
            self.swallow -= taken;
            return Some(taken);
        }
        let mut keys: Vec<&[u8]> = Vec::new();
        let parsed = parse(&self.input, &mut keys);
        for key in &keys {
            assert!((1..=KEY_LEN_MAX).contains(&key.len()), "a key of {} bytes", key.len());
        }
        match parsed {
            Parse::NeedMore { total } => {
                assert!(total > self.input.len(), "more is asked for than is missing");
                assert!(keys.is_empty(), "a key of a request that is not whole");
                None
            }
            Parse::NeedValue { request, header, value, trailer } => {
                assert!(header <= self.input.len() && trailer == 0);
                assert!(self.input.len() < header + value, "a value is asked for that is there");
                if value <= LONGEST_VALUE {
                    return None;
                }
                self.heard.push(format!("{request:?} {keys:?} and {value} bytes"));
                self.swallow = value;
                Some(header)
            }
            Parse::Request { request, consumed } => {
                assert!(consumed > 0 && keys.len() <= 1);
                self.heard.push(format!("{request:?} {keys:?}"));
                Some(consumed)
            }
            Parse::Refused { reply, consumed, then } => {
                assert!(keys.is_empty(), "a key of a refused request");
                self.heard.push(format!("refused {reply:?} {then:?}"));
                match then {
                    Then::Continue => assert!(consumed > 0),
                    Then::Swallow(bytes) => self.swallow = bytes,
                    Then::Close => self.closed = true,
                    Then::SkipLine => panic!("there are no lines in this protocol"),
                }
                Some(consumed)
            }
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((stream, packets)) = larder_fuzz::packets(data) else { return };
    let mut whole = Reader::default();
    whole.receive(stream);
    let mut pieces = Reader::default();
    packets.into_iter().for_each(|packet| pieces.receive(packet));
    assert_eq!(whole.heard, pieces.heard, "the packets changed the meaning");
});
