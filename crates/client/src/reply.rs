//! The replies of memcached's text and meta protocols. [`Reply`] parses one line. [`Parser`] finds
//! lines and values in a stream of bytes that may be cut anywhere; it keeps no values.
//! [`ReplyReader`](crate::ReplyReader) reads whole replies from a blocking source. All three work
//! without knowing the requests. A line that is not of these protocols is an error.

/// The longest line of a reply, in bytes.
pub(crate) const LINE_MAX: usize = 64 * 1024;
/// The longest value that a reply may announce, in bytes: the largest item size of memcached.
const VALUE_MAX: u64 = 1 << 30;

/// A line of a reply. A line that announces a value is followed by the value. After
/// [`Reply::Value`], [`Reply::Stat`] and [`Reply::Prefix`], the reply continues with more lines.
/// Any other line is the last line of its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// `VALUE`: an item of a get. Its value follows, then further items or `END`.
    Value {
        /// The key as the server wrote it.
        key: &'a [u8],
        /// The client flags.
        flags: u32,
        /// The length of the value in bytes.
        length: usize,
        /// The cas id, if the request was of the `gets` family.
        cas: Option<u64>,
    },
    /// `END` of a get or of statistics.
    End,
    /// `STORED`.
    Stored,
    /// `NOT_STORED`: the condition of an add, replace, append or prepend did not hold.
    NotStored,
    /// `EXISTS`: the item has another cas id.
    Exists,
    /// `NOT_FOUND`.
    NotFound,
    /// `DELETED`.
    Deleted,
    /// `TOUCHED`.
    Touched,
    /// `OK`.
    Ok,
    /// `RESET`, the reply to `stats reset`.
    Reset,
    /// A counter's value.
    Number(u64),
    /// `VERSION`, with the text after it.
    Version(&'a [u8]),
    /// `STAT`, with the row after it: a name, a space and a value.
    Stat(&'a [u8]),
    /// `PREFIX`, with the row of `stats detail dump` after it.
    Prefix(&'a [u8]),
    /// The reply to a meta command.
    Meta(Code, Flags<'a>),
    /// The whole line of `ERROR`, `CLIENT_ERROR …` or `SERVER_ERROR …`.
    Error(&'a [u8]),
}

/// The result of a meta command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// `HD`: the command succeeded.
    Done,
    /// `VA`: the command succeeded, and a value of this many bytes follows.
    Value(usize),
    /// `EN`: `mg` or `me` found no item.
    Miss,
    /// `NF`: another command found no item.
    NotFound,
    /// `NS`: nothing was stored. For example, an add found an item, or a rate limit is used up.
    NotStored,
    /// `EX`: the item has another cas id.
    Exists,
    /// `MN`, the reply to `mn`. The replies to all requests before the `mn` were sent before it.
    Noop,
    /// `ME`: the description of an item; its flags begin with the key.
    Debug,
}

/// The flags of a meta reply: words that begin with the letter of the flag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags<'a>(pub &'a [u8]);

impl<'a> Flags<'a> {
    /// Returns the text after the letter, in the first flag with this letter.
    pub fn get(self, letter: u8) -> Option<&'a [u8]> {
        self.0.split(|&byte| byte == b' ').find_map(|word| word.strip_prefix(&[letter]))
    }

    /// Returns the text after the letter as a number, in the first flag with this letter.
    pub fn number(self, letter: u8) -> Option<u64> {
        number(self.get(letter)?)
    }
}

impl<'a> Reply<'a> {
    /// Parses a line without its line end. Returns `None` if the line does not belong to
    /// memcached's text or meta protocol.
    #[inline(always)]
    pub fn parse(line: &'a [u8]) -> Option<Reply<'a>> {
        if let Some(rest) = line.strip_prefix(b"VALUE ") {
            return value_line(rest);
        }
        if let Some(rest) = line.strip_prefix(b"VA ") {
            let (length, rest) = leading_number(rest)?;
            let flags = if rest.is_empty() { rest } else { rest.strip_prefix(b" ")? };
            return Some(Reply::Meta(Code::Value(value_length(length)?), Flags(flags)));
        }
        Some(match line {
            b"END" => Reply::End,
            b"STORED" => Reply::Stored,
            b"NOT_STORED" => Reply::NotStored,
            b"EXISTS" => Reply::Exists,
            b"NOT_FOUND" => Reply::NotFound,
            b"DELETED" => Reply::Deleted,
            b"TOUCHED" => Reply::Touched,
            b"OK" => Reply::Ok,
            b"RESET" => Reply::Reset,
            // Some servers pad the reply to decr with spaces.
            [b'0'..=b'9', ..] => {
                let (number, rest) = leading_number(line)?;
                rest.iter().all(|&byte| byte == b' ').then_some(Reply::Number(number))?
            }
            &[a, b] => Reply::Meta(code(a, b)?, Flags::default()),
            &[a, b, b' ', ref flags @ ..] => Reply::Meta(code(a, b)?, Flags(flags)),
            line => return rare(line),
        })
    }

    /// Returns the length of the value that follows, if one does.
    #[inline]
    pub fn value_length(&self) -> Option<usize> {
        match *self {
            Reply::Value { length, .. } | Reply::Meta(Code::Value(length), _) => Some(length),
            _ => None,
        }
    }
}

/// Parses `key flags length [cas]`.
#[inline(always)]
fn value_line(line: &[u8]) -> Option<Reply<'_>> {
    let end = memchr::memchr(b' ', line).filter(|&end| end > 0)?;
    let (flags, rest) = leading_number(&line[end + 1..])?;
    let (length, rest) = leading_number(rest.strip_prefix(b" ")?)?;
    let cas = if rest.is_empty() { None } else { Some(number(rest.strip_prefix(b" ")?)?) };
    let (flags, length) = (u32::try_from(flags).ok()?, value_length(length)?);
    Some(Reply::Value { key: &line[..end], flags, length, cas })
}

#[inline(always)]
fn value_length(length: u64) -> Option<usize> {
    usize::try_from(length).ok().filter(|_| length <= VALUE_MAX)
}

#[inline(always)]
fn code(a: u8, b: u8) -> Option<Code> {
    Some(match [a, b] {
        [b'H', b'D'] => Code::Done,
        [b'E', b'N'] => Code::Miss,
        [b'N', b'F'] => Code::NotFound,
        [b'N', b'S'] => Code::NotStored,
        [b'E', b'X'] => Code::Exists,
        [b'M', b'N'] => Code::Noop,
        [b'M', b'E'] => Code::Debug,
        _ => return None,
    })
}

#[cold]
fn rare(line: &[u8]) -> Option<Reply<'_>> {
    let (word, rest) = match memchr::memchr(b' ', line) {
        Some(end) => (&line[..end], &line[end + 1..]),
        None => (line, &b""[..]),
    };
    match word {
        b"VERSION" => Some(Reply::Version(rest)),
        b"STAT" if !rest.is_empty() => Some(Reply::Stat(rest)),
        b"PREFIX" if !rest.is_empty() => Some(Reply::Prefix(rest)),
        // A server that refuses `shutdown` replies `SERVER_ERROR:`, with a colon.
        b"ERROR" | b"CLIENT_ERROR" | b"SERVER_ERROR" | b"SERVER_ERROR:" => Some(Reply::Error(line)),
        _ => None,
    }
}

fn number(text: &[u8]) -> Option<u64> {
    leading_number(text).filter(|(_, rest)| rest.is_empty()).map(|(number, _)| number)
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

/// Returns the error text for a line that is no [`Reply`], or a reply that must not come here.
#[cold]
pub(crate) fn unknown(line: &[u8]) -> String {
    let line = &line[..line.len().min(200)];
    format!("the answer {:?} is not of this protocol", String::from_utf8_lossy(line))
}

/// Receives the values and replies that the parser finds. A value comes in pieces, as it arrives.
pub trait Sink {
    /// Called when a value begins. The key is empty in meta replies.
    fn value(&mut self, key: &[u8], length: usize);
    /// Called with the next piece of the value.
    fn body(&mut self, offset: usize, piece: &[u8]);
    /// Called when a reply with `values` values is complete. `reply` is its last line. For a `VA`
    /// line, the flags in `reply` are left out. The parser passes each line of statistics as a
    /// separate reply.
    fn reply(&mut self, reply: Reply<'_>, values: u32);
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
    /// The value and `seen` bytes of its line end have arrived.
    BodyEnd {
        meta: bool,
        length: usize,
        seen: usize,
    },
}

/// The parser's state between two reads from a connection.
#[derive(Debug, Default)]
pub struct Parser {
    state: State,
    /// A line whose end has not arrived yet.
    partial: Vec<u8>,
    values: u32,
}

impl Parser {
    /// Consumes all of `bytes`. The parser must not be used after an error, because it no longer
    /// knows where a reply begins.
    ///
    /// # Errors
    /// Returns a description of the bytes that are no reply.
    pub fn feed(&mut self, mut bytes: &[u8], sink: &mut impl Sink) -> Result<(), String> {
        while !bytes.is_empty() {
            match self.state {
                State::Line => {
                    // The most frequent lines need no search for their end.
                    if self.partial.is_empty() {
                        if let Some(rest) = bytes.strip_prefix(b"END\r\n") {
                            bytes = rest;
                            sink.reply(Reply::End, std::mem::take(&mut self.values));
                            continue;
                        }
                        if self.values == 0
                            && let Some(rest) = bytes.strip_prefix(b"STORED\r\n")
                        {
                            bytes = rest;
                            sink.reply(Reply::Stored, 0);
                            continue;
                        }
                    }
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
                        if whole.len() > LINE_MAX {
                            return Err("a line is too long".into());
                        }
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
                    if offset == length
                        && let Some(rest) = bytes.strip_prefix(b"\r\n")
                    {
                        bytes = rest;
                        self.end_value(meta, length, sink);
                        continue;
                    }
                    self.state = if offset == length {
                        State::BodyEnd { meta, length, seen: 0 }
                    } else {
                        State::Body { meta, offset, length }
                    };
                }
                State::BodyEnd { meta, length, seen } => {
                    let end = &b"\r\n"[seen..];
                    let (got, rest) = bytes.split_at(end.len().min(bytes.len()));
                    if got != &end[..got.len()] {
                        return Err("a value is longer than its length says".into());
                    }
                    bytes = rest;
                    self.state = State::BodyEnd { meta, length, seen: seen + got.len() };
                    if got.len() == end.len() {
                        self.end_value(meta, length, sink);
                    }
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn end_value(&mut self, meta: bool, length: usize, sink: &mut impl Sink) {
        self.state = State::Line;
        if meta {
            sink.reply(Reply::Meta(Code::Value(length), Flags::default()), 1);
        } else {
            self.values += 1;
        }
    }

    #[inline]
    fn line(&mut self, line: &[u8], sink: &mut impl Sink) -> Result<(), String> {
        let Some(reply) = line.strip_suffix(b"\r\n").and_then(Reply::parse) else {
            return Err(unknown(line));
        };
        let (meta, key, length) = match reply {
            Reply::Value { key, length, .. } => (false, key, length),
            Reply::Meta(Code::Value(length), _) if self.values == 0 => (true, &b""[..], length),
            // If a get fails after some values, the error line ends its reply.
            Reply::End | Reply::Error(_) => {
                sink.reply(reply, std::mem::take(&mut self.values));
                return Ok(());
            }
            reply if self.values == 0 => {
                sink.reply(reply, 0);
                return Ok(());
            }
            _ => return Err(unknown(line)),
        };
        sink.value(key, length);
        self.state = match length {
            0 => State::BodyEnd { meta, length, seen: 0 },
            _ => State::Body { meta, offset: 0, length },
        };
        Ok(())
    }
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
        fn reply(&mut self, reply: Reply<'_>, values: u32) {
            let body = String::from_utf8_lossy(&self.1).into_owned();
            self.1.clear();
            match reply {
                Reply::Error(line) => self.0.push(format!("{}", String::from_utf8_lossy(line))),
                reply => self.0.push(format!("{reply:?} {values} {body:?}")),
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
    fn a_whole_stream_is_parsed() {
        let log = parse(&[STREAM]);
        assert_eq!(log.0[..4], ["value a 5", "value b 0", "End 2 \"\"", "End 0 \"\""]);
        assert_eq!(log.0.len(), 27);
        assert_eq!(log.0[10], "Number(18446744073709551615) 0 \"\"");
        assert_eq!(log.0[12..14], ["value  4", "Meta(Value(4), Flags([])) 1 \"END\\r\""]);
        assert_eq!(log.0[25..], ["value c 3", "End 1 \"END\""]);
    }

    #[test]
    fn a_stream_may_be_cut_at_every_byte() {
        let whole = parse(&[STREAM]);
        for cut in 0..=STREAM.len() {
            let (left, right) = STREAM.split_at(cut);
            assert_eq!(parse(&[left, right]), whole, "cut at {cut}");
        }
        let single: Vec<&[u8]> = STREAM.chunks(1).collect();
        assert_eq!(parse(&single), whole);
    }

    #[test]
    fn malformed_replies_are_errors() {
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
            "VALUE a 0 1073741825\r\n",
            "VALUE a 4294967296 1\r\n",
            "VALUE  0 1\r\n",
            "VALUE a 0 1 \r\n",
            "VALUE a 0 1 2 3\r\n",
            "VALUE a +0 1\r\n",
            "VALUES a 0 1\r\n",
            "VALUE a 0 1\r\nx\r\nSTORED\r\n",
            "VALUE a 0 1\r\nx\r\nVA 1\r\n",
            "VA x\r\n",
            "VA 1x\r\n",
            "HDx\r\n",
            "STORED \r\n",
            "STAT\r\n",
            "ERRORS\r\n",
            "7\t\r\n",
            "\r\n",
        ] {
            assert!(
                Parser::default().feed(text.as_bytes(), &mut Log::default()).is_err(),
                "{text:?}"
            );
        }
        assert!(Parser::default().feed(&[b'x'; LINE_MAX + 1], &mut Log::default()).is_err());
    }

    #[test]
    fn each_status_has_its_own_case() {
        let word = |text: &'static str| Reply::parse(text.as_bytes()).unwrap();
        assert_eq!(word("DELETED"), Reply::Deleted);
        assert_eq!(word("TOUCHED"), Reply::Touched);
        assert_eq!(word("OK"), Reply::Ok);
        assert_eq!(word("RESET"), Reply::Reset);
        assert_eq!(word("VERSION 1.6 x"), Reply::Version(b"1.6 x"));
        assert_eq!(word("STAT a b c"), Reply::Stat(b"a b c"));
        assert_eq!(word("SERVER_ERROR: no"), Reply::Error(b"SERVER_ERROR: no"));
        let item = Reply::Value { key: b"k", flags: 7, length: 12, cas: Some(99) };
        assert_eq!(word("VALUE k 7 12 99"), item);
        assert_eq!(word("HD "), Reply::Meta(Code::Done, Flags(b"")));
    }

    #[test]
    fn flags_are_found_by_their_letter() {
        let Some(Reply::Meta(Code::Value(5), flags)) = Reply::parse(b"VA 5 f30 kname t-1") else {
            panic!("a value");
        };
        assert_eq!((flags.number(b'f'), flags.get(b'k')), (Some(30), Some(&b"name"[..])));
        assert_eq!((flags.number(b't'), flags.get(b't')), (None, Some(&b"-1"[..])));
        assert_eq!(flags.get(b'c'), None);
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
