//! Finds the ends of answers in a stream of bytes that may be cut anywhere. The parser keeps no
//! values, and it need not know the requests: the load sends only text and meta commands for which
//! the first line of an answer shows whether more lines follow.

/// Receives the values and answers that the parser finds. A value comes in pieces, as it arrives.
pub trait Sink {
    /// A value begins. The key is empty in meta answers.
    fn value(&mut self, key: &[u8], length: usize);
    /// The next piece of the value.
    fn body(&mut self, offset: usize, piece: &[u8]);
    /// An answer is complete.
    fn reply(&mut self, reply: Reply<'_>);
}

/// A complete answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// The end of the answer to a get, with the number of values found (0 or 1 for a meta get).
    Values(u32),
    /// `STORED`.
    Stored,
    /// `NOT_STORED` or `NS`.
    NotStored,
    /// `EXISTS` or `EX`.
    Exists,
    /// `NOT_FOUND` or `NF`.
    NotFound,
    /// `DELETED`.
    Deleted,
    /// `TOUCHED`.
    Touched,
    /// `HD`: a meta command succeeded.
    Done,
    /// `MN`: all requests before it are answered.
    Noop,
    /// A counter's value.
    Number(u64),
    /// `ERROR`, `CLIENT_ERROR …` or `SERVER_ERROR …`.
    Error(&'a [u8]),
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Line,
    Body {
        meta: bool,
        offset: usize,
        length: usize,
    },
    /// Behind a value, with the number of bytes of the line end already seen.
    BodyEnd {
        meta: bool,
        seen: usize,
    },
}

/// The longest line of an answer, in bytes: a key of 250 bytes and some numbers, with room to
/// spare.
const LINE_MAX: usize = 4096;

/// The parser's state between two reads from a connection.
#[derive(Debug, Default)]
pub struct Parser {
    state: State,
    /// A line whose end has not arrived yet.
    partial: Vec<u8>,
    values: u32,
}

impl Parser {
    /// Consumes all of `bytes`. Returns an error text if they are not answers. The parser must not
    /// be used after an error, because it no longer knows where an answer begins.
    ///
    /// # Errors
    /// Returns a description of the bytes that are no answer.
    pub fn feed(&mut self, mut bytes: &[u8], sink: &mut impl Sink) -> Result<(), String> {
        while !bytes.is_empty() {
            match self.state {
                State::Line => {
                    let Some(end) = memchr::memchr(b'\n', bytes) else {
                        self.partial.extend_from_slice(bytes);
                        if self.partial.len() > LINE_MAX {
                            return Err("a line without an end".into());
                        }
                        return Ok(());
                    };
                    let (line, rest) = bytes.split_at(end + 1);
                    bytes = rest;
                    if self.partial.is_empty() {
                        self.line(line, sink)?;
                    } else {
                        let mut whole = std::mem::take(&mut self.partial);
                        whole.extend_from_slice(line);
                        let parsed = self.line(&whole, sink);
                        whole.clear();
                        self.partial = whole;
                        parsed?;
                    }
                }
                State::Body { meta, offset, length } => {
                    let (piece, rest) = bytes.split_at((length - offset).min(bytes.len()));
                    sink.body(offset, piece);
                    bytes = rest;
                    let offset = offset + piece.len();
                    self.state = if offset == length {
                        State::BodyEnd { meta, seen: 0 }
                    } else {
                        State::Body { meta, offset, length }
                    };
                }
                State::BodyEnd { meta, seen } => {
                    let end = &b"\r\n"[seen..];
                    let (got, rest) = bytes.split_at(end.len().min(bytes.len()));
                    if got != &end[..got.len()] {
                        return Err("a value is longer than its length says".into());
                    }
                    bytes = rest;
                    self.state = State::BodyEnd { meta, seen: seen + got.len() };
                    if got.len() == end.len() {
                        self.state = State::Line;
                        if meta {
                            sink.reply(Reply::Values(1));
                        } else {
                            self.values += 1;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn line(&mut self, line: &[u8], sink: &mut impl Sink) -> Result<(), String> {
        let line = line.strip_suffix(b"\r\n").ok_or_else(|| unknown(line))?;
        if let Some(rest) = line.strip_prefix(b"VALUE ") {
            let (key, length) = value_line(rest).ok_or_else(|| unknown(line))?;
            sink.value(key, length);
            self.state = State::Body { meta: false, offset: 0, length };
            self.skip_empty_body();
            return Ok(());
        }
        if let Some(rest) = line.strip_prefix(b"VA ") {
            let (length, _) = leading_number(rest).ok_or_else(|| unknown(line))?;
            let length = usize::try_from(length).map_err(|_| unknown(line))?;
            sink.value(b"", length);
            self.state = State::Body { meta: true, offset: 0, length };
            self.skip_empty_body();
            return Ok(());
        }
        let reply = match line {
            b"END" => Reply::Values(std::mem::take(&mut self.values)),
            b"STORED" => Reply::Stored,
            b"NOT_STORED" => Reply::NotStored,
            b"EXISTS" => Reply::Exists,
            b"NOT_FOUND" => Reply::NotFound,
            b"DELETED" => Reply::Deleted,
            b"TOUCHED" => Reply::Touched,
            [b'0'..=b'9', ..] => match leading_number(line) {
                Some((number, rest)) if rest.trim_ascii().is_empty() => Reply::Number(number),
                _ => return Err(unknown(line)),
            },
            [b'H', b'D'] | [b'H', b'D', b' ', ..] => Reply::Done,
            b"MN" => Reply::Noop,
            [b'E', b'N'] => Reply::Values(0),
            [b'N', b'S'] | [b'N', b'S', b' ', ..] => Reply::NotStored,
            [b'E', b'X'] | [b'E', b'X', b' ', ..] => Reply::Exists,
            [b'N', b'F'] | [b'N', b'F', b' ', ..] => Reply::NotFound,
            line if is_error(line) => {
                // If a get fails after some values, its answer also ends here.
                self.values = 0;
                Reply::Error(line)
            }
            line => return Err(unknown(line)),
        };
        sink.reply(reply);
        Ok(())
    }

    fn skip_empty_body(&mut self) {
        if let State::Body { meta, length: 0, .. } = self.state {
            self.state = State::BodyEnd { meta, seen: 0 };
        }
    }
}

fn is_error(line: &[u8]) -> bool {
    line.starts_with(b"ERROR")
        || line.starts_with(b"SERVER_ERROR")
        || line.starts_with(b"CLIENT_ERROR")
}

fn unknown(line: &[u8]) -> String {
    let line = &line[..line.len().min(200)];
    format!("the answer {:?} is not of this protocol", String::from_utf8_lossy(line))
}

/// Parses `key flags length [cas]`. Returns the key and the length.
#[inline]
fn value_line(line: &[u8]) -> Option<(&[u8], usize)> {
    let end = memchr::memchr(b' ', line)?;
    let (_, rest) = leading_number(&line[end + 1..])?;
    let (length, rest) = leading_number(rest.strip_prefix(b" ")?)?;
    (rest.is_empty() || rest[0] == b' ').then_some(())?;
    Some((&line[..end], usize::try_from(length).ok()?))
}

#[inline]
fn leading_number(text: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0u64;
    let mut digits = 0;
    for &byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        number = number.checked_mul(10)?.checked_add(u64::from(digit))?;
        digits += 1;
    }
    (digits > 0).then(|| (number, &text[digits..]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Records all calls, with the pieces of a value joined.
    #[derive(Default, Debug, PartialEq, Eq)]
    struct Log(Vec<String>, Vec<u8>);

    impl Sink for Log {
        fn value(&mut self, key: &[u8], length: usize) {
            self.0.push(format!("value {} {length}", String::from_utf8_lossy(key)));
            self.1.clear();
        }
        fn body(&mut self, offset: usize, piece: &[u8]) {
            assert_eq!(offset, self.1.len(), "pieces must be adjacent");
            self.1.extend_from_slice(piece);
        }
        fn reply(&mut self, reply: Reply<'_>) {
            let body = String::from_utf8_lossy(&self.1).into_owned();
            self.1.clear();
            match reply {
                Reply::Error(line) => self.0.push(format!("{}", String::from_utf8_lossy(line))),
                reply => self.0.push(format!("{reply:?} {body:?}")),
            }
        }
    }

    const STREAM: &[u8] =
        b"VALUE a 0 5\r\nh\r\nlo\r\nVALUE b 9 0 77\r\n\r\nEND\r\nEND\r\nSTORED\r\n\
        NOT_STORED\r\nEXISTS\r\nNOT_FOUND\r\nDELETED\r\nTOUCHED\r\n18446744073709551615\r\n7 \r\n\
        VA 4 f0 kx\r\nEND\r\r\nVA 0\r\n\r\nHD\r\nHD c7\r\nEN\r\nNS\r\nEX\r\nNF Oq\r\nERROR\r\n\
        SERVER_ERROR out of memory\r\nCLIENT_ERROR bad\r\nVALUE c 0 3\r\nEND\r\nEND\r\n";

    fn parse(pieces: &[&[u8]]) -> Log {
        let mut parser = Parser::default();
        let mut log = Log::default();
        for piece in pieces {
            parser.feed(piece, &mut log).unwrap();
        }
        log
    }

    #[test]
    fn whole() {
        let log = parse(&[STREAM]);
        assert_eq!(log.0[..4], ["value a 5", "value b 0", "Values(2) \"\"", "Values(0) \"\""]);
        assert_eq!(log.0.len(), 27);
        assert_eq!(log.0[10], "Number(18446744073709551615) \"\"");
        assert_eq!(log.0[12..14], ["value  4", "Values(1) \"END\\r\""]);
        assert_eq!(log.0[25..], ["value c 3", "Values(1) \"END\""]);
    }

    #[test]
    fn cut_at_every_byte() {
        let whole = parse(&[STREAM]);
        for cut in 0..=STREAM.len() {
            let (left, right) = STREAM.split_at(cut);
            assert_eq!(parse(&[left, right]), whole, "cut at {cut}");
        }
        let single: Vec<&[u8]> = STREAM.chunks(1).collect();
        assert_eq!(parse(&single), whole);
    }

    #[test]
    fn what_is_not_an_answer() {
        for text in [
            "HELLO\r\n",
            "VALUE a 0\r\n",
            "VALUE a 0 x\r\n",
            "VALUE a 0 1\r\nxyz",
            "VA\r\n",
            "STORED\n",
            "12x\r\n",
            "99999999999999999999\r\n",
            "VALUE a 0 99999999999999999999\r\n",
        ] {
            assert!(
                Parser::default().feed(text.as_bytes(), &mut Log::default()).is_err(),
                "{text:?}"
            );
        }
        assert!(Parser::default().feed(&[b'x'; LINE_MAX + 1], &mut Log::default()).is_err());
    }

    proptest! {
        #[test]
        fn any_pieces_give_the_same(cuts in proptest::collection::vec(0..STREAM.len(), 0..12)) {
            let mut cuts = cuts;
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts {
                pieces.push(&STREAM[from..cut]);
                from = cut;
            }
            pieces.push(&STREAM[from..]);
            prop_assert_eq!(parse(&pieces), parse(&[STREAM]));
        }

        #[test]
        fn noise_never_panics(bytes: Vec<u8>, cut in 0usize..64) {
            let mut parser = Parser::default();
            let (left, right) = bytes.split_at(cut.min(bytes.len()));
            let mut log = Log::default();
            let _ = parser.feed(left, &mut log).and_then(|()| parser.feed(right, &mut log));
        }
    }
}
