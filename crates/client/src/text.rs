//! The text commands.

use std::io::Write;

use crate::client::check_key;
use crate::{Client, Error, Result};

/// What a get found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The key as the server wrote it.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// The client flags.
    pub flags: u32,
    /// The cas id; only the `gets` family asks for it.
    pub cas: Option<u64>,
}

/// How a conditional write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The value is in place.
    Stored,
    /// The condition (add, replace, append, prepend) did not hold.
    NotStored,
    /// The cas id is no longer that of the item.
    Exists,
    /// The item to compare with is not there.
    NotFound,
}

impl Client {
    /// The item under `key`, if there is one.
    ///
    /// # Errors
    /// See [`Error`]; each method of this type answers the same kinds.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Item>> {
        Ok(self.retrieve("get", &[key])?.pop())
    }

    /// As [`Client::get`], with the cas id.
    pub fn gets(&mut self, key: &[u8]) -> Result<Option<Item>> {
        Ok(self.retrieve("gets", &[key])?.pop())
    }

    /// The items found under `keys`, in the order of the answer.
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<Vec<Item>> {
        self.retrieve("get", keys)
    }

    /// As [`Client::get_many`], with the cas ids.
    pub fn gets_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<Vec<Item>> {
        self.retrieve("gets", keys)
    }

    /// Gets and sets the expiry (seconds, or Unix time above 30 days; 0 is never) in one step.
    pub fn gat(&mut self, key: &[u8], expiry: i64) -> Result<Option<Item>> {
        Ok(self.retrieve(&format!("gat {expiry}"), &[key])?.pop())
    }

    /// As [`Client::gat`], with the cas id.
    pub fn gats(&mut self, key: &[u8], expiry: i64) -> Result<Option<Item>> {
        Ok(self.retrieve(&format!("gats {expiry}"), &[key])?.pop())
    }

    /// Stores unconditionally.
    pub fn set(&mut self, key: &[u8], value: &[u8], flags: u32, expiry: i64) -> Result<()> {
        match self.store("set", key, value, flags, expiry, None)? {
            Stored::Stored => Ok(()),
            other => Err(Error::Protocol(format!("a set was answered with {other:?}"))),
        }
    }

    /// Stores if the key is absent.
    pub fn add(&mut self, key: &[u8], value: &[u8], flags: u32, expiry: i64) -> Result<Stored> {
        self.store("add", key, value, flags, expiry, None)
    }

    /// Stores if the key is present.
    pub fn replace(&mut self, key: &[u8], value: &[u8], flags: u32, expiry: i64) -> Result<Stored> {
        self.store("replace", key, value, flags, expiry, None)
    }

    /// Adds bytes behind the value of a present key.
    pub fn append(&mut self, key: &[u8], value: &[u8]) -> Result<Stored> {
        self.store("append", key, value, 0, 0, None)
    }

    /// Adds bytes before the value of a present key.
    pub fn prepend(&mut self, key: &[u8], value: &[u8]) -> Result<Stored> {
        self.store("prepend", key, value, 0, 0, None)
    }

    /// Stores if the item still has this cas id.
    pub fn cas(
        &mut self,
        key: &[u8],
        value: &[u8],
        flags: u32,
        expiry: i64,
        cas: u64,
    ) -> Result<Stored> {
        self.store("cas", key, value, flags, expiry, Some(cas))
    }

    /// Deletes; false if there was nothing.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool> {
        self.found("delete", key, None, b"DELETED")
    }

    /// Sets the expiry; false if there is no such item.
    pub fn touch(&mut self, key: &[u8], expiry: i64) -> Result<bool> {
        self.found("touch", key, Some(expiry), b"TOUCHED")
    }

    /// Adds to a counter; `None` if there is none.
    pub fn incr(&mut self, key: &[u8], by: u64) -> Result<Option<u64>> {
        self.count("incr", key, by)
    }

    /// Subtracts from a counter, stopping at 0; `None` if there is none.
    pub fn decr(&mut self, key: &[u8], by: u64) -> Result<Option<u64>> {
        self.count("decr", key, by)
    }

    /// Forgets everything, at once or after `delay` seconds.
    pub fn flush_all(&mut self, delay: Option<u32>) -> Result<()> {
        match delay {
            Some(delay) => self.command(&format!("flush_all {delay}"))?,
            None => self.command("flush_all")?,
        }
        self.expect_line("flush_all", b"OK")
    }

    /// The version the server answers, without the word `VERSION`.
    pub fn version(&mut self) -> Result<String> {
        self.command("version")?;
        let line = self.read_answer()?;
        match line.strip_prefix(b"VERSION ") {
            Some(version) => Ok(String::from_utf8_lossy(version).into_owned()),
            None => Err(Error::unexpected("version", line)),
        }
    }

    /// The rows of `stats` or of `stats GROUP` in the order of the server.
    pub fn stats(&mut self, group: Option<&str>) -> Result<Vec<(String, String)>> {
        match group {
            Some(group) => self.command(&format!("stats {group}"))?,
            None => self.command("stats")?,
        }
        let mut rows = Vec::new();
        loop {
            let line = self.read_answer()?;
            match line {
                // `stats reset` is answered with RESET, `stats detail on` with OK.
                b"END" | b"RESET" | b"OK" => return Ok(rows),
                _ => rows.push(stat_row(line)?),
            }
        }
    }

    fn retrieve<K: AsRef<[u8]>>(&mut self, verb: &str, keys: &[K]) -> Result<Vec<Item>> {
        self.begin(verb);
        for key in keys {
            check_key(key.as_ref())?;
            self.request.push(b' ');
            self.request.extend_from_slice(key.as_ref());
        }
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        self.request.extend_from_slice(b"\r\n");
        self.send_request()?;
        self.read_items()
    }

    pub(crate) fn read_items(&mut self) -> Result<Vec<Item>> {
        let mut items = Vec::new();
        loop {
            let line = self.read_answer()?;
            if line == b"END" {
                return Ok(items);
            }
            items.push(self.read_item()?);
        }
    }

    /// Reads the value behind the `VALUE` line in `self.line`.
    fn read_item(&mut self) -> Result<Item> {
        let parsed = parse_value_line(&self.line);
        let Some((key, flags, length, cas)) = parsed else {
            return Err(Error::unexpected("a get", &self.line));
        };
        Ok(Item { key, value: self.read_value(length)?, flags, cas })
    }

    fn store(
        &mut self,
        verb: &str,
        key: &[u8],
        value: &[u8],
        flags: u32,
        expiry: i64,
        cas: Option<u64>,
    ) -> Result<Stored> {
        check_key(key)?;
        self.begin(verb);
        self.request.push(b' ');
        self.request.extend_from_slice(key);
        push(&mut self.request, format_args!(" {flags} {expiry} {}", value.len()));
        if let Some(cas) = cas {
            push(&mut self.request, format_args!(" {cas}"));
        }
        self.request.extend_from_slice(b"\r\n");
        self.request.extend_from_slice(value);
        self.request.extend_from_slice(b"\r\n");
        self.send_request()?;
        match self.read_answer()? {
            b"STORED" => Ok(Stored::Stored),
            b"NOT_STORED" => Ok(Stored::NotStored),
            b"EXISTS" => Ok(Stored::Exists),
            b"NOT_FOUND" => Ok(Stored::NotFound),
            line => Err(Error::unexpected(verb, line)),
        }
    }

    fn found(&mut self, verb: &str, key: &[u8], number: Option<i64>, yes: &[u8]) -> Result<bool> {
        check_key(key)?;
        self.begin(verb);
        self.request.push(b' ');
        self.request.extend_from_slice(key);
        if let Some(number) = number {
            push(&mut self.request, format_args!(" {number}"));
        }
        self.request.extend_from_slice(b"\r\n");
        self.send_request()?;
        match self.read_answer()? {
            b"NOT_FOUND" => Ok(false),
            line if line == yes => Ok(true),
            line => Err(Error::unexpected(verb, line)),
        }
    }

    fn count(&mut self, verb: &str, key: &[u8], by: u64) -> Result<Option<u64>> {
        check_key(key)?;
        self.begin(verb);
        self.request.push(b' ');
        self.request.extend_from_slice(key);
        push(&mut self.request, format_args!(" {by}\r\n"));
        self.send_request()?;
        match self.read_answer()? {
            b"NOT_FOUND" => Ok(None),
            line => match number(line) {
                Some(number) => Ok(Some(number)),
                None => Err(Error::unexpected(verb, line)),
            },
        }
    }

    /// Sends a command that is a line and nothing else.
    fn command(&mut self, line: &str) -> Result<()> {
        if line.contains(['\r', '\n']) {
            return Err(Error::Usage("a command must be one line".into()));
        }
        self.begin(line);
        self.request.extend_from_slice(b"\r\n");
        self.send_request()
    }

    fn begin(&mut self, verb: &str) {
        self.request.clear();
        self.request.extend_from_slice(verb.as_bytes());
    }

    fn expect_line(&mut self, request: &str, wanted: &[u8]) -> Result<()> {
        match self.read_answer()? {
            line if line == wanted => Ok(()),
            line => Err(Error::unexpected(request, line)),
        }
    }
}

/// `VALUE key flags length [cas]`.
pub(crate) fn parse_value_line(line: &[u8]) -> Option<(Vec<u8>, u32, usize, Option<u64>)> {
    let mut words = line.split(|&b| b == b' ');
    if words.next() != Some(b"VALUE".as_slice()) {
        return None;
    }
    let key = words.next()?.to_vec();
    let flags = number(words.next()?)?.try_into().ok()?;
    let length = number(words.next()?)?.try_into().ok()?;
    let cas = match words.next() {
        Some(word) => Some(number(word)?),
        None => None,
    };
    words.next().is_none().then_some((key, flags, length, cas))
}

fn stat_row(line: &[u8]) -> Result<(String, String)> {
    let text = String::from_utf8_lossy(line);
    let mut words = text.splitn(3, ' ');
    match (words.next(), words.next(), words.next()) {
        (Some("STAT"), Some(name), value) => {
            Ok((name.to_owned(), value.unwrap_or_default().to_owned()))
        }
        _ => Err(Error::unexpected("stats", line)),
    }
}

/// A decimal number; memcached pads the answer of decr with spaces in some versions.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text.trim_ascii_end()).ok()?.parse().ok()
}

/// Formats into a buffer, which cannot fail.
pub(crate) fn push(buffer: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let _ = buffer.write_fmt(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_lines() {
        assert_eq!(parse_value_line(b"VALUE k 7 12"), Some((b"k".to_vec(), 7, 12, None)));
        assert_eq!(parse_value_line(b"VALUE k 7 12 99"), Some((b"k".to_vec(), 7, 12, Some(99))));
        for line in ["VALUE k 7", "VALUE k x 1", "VALUE k 1 1 1 1", "VALUES k 1 1", "END"] {
            assert_eq!(parse_value_line(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn stat_rows() {
        let row = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            stat_row(b"STAT version 1.6.45 larder").unwrap(),
            row("version", "1.6.45 larder")
        );
        assert_eq!(stat_row(b"STAT empty").unwrap(), row("empty", ""));
        assert!(stat_row(b"STORED").is_err());
    }

    #[test]
    fn padded_numbers() {
        assert_eq!(number(b"9  "), Some(9));
        assert_eq!(number(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(number(b"18446744073709551616"), None);
        assert_eq!(number(b""), None);
    }
}
