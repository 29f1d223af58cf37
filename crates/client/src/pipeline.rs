//! Many requests in one write, their answers in order.

use crate::client::{check_key, error_of};
use crate::meta::{parse_meta, push_meta};
use crate::text::{Item, Stored, number, parse_value_line, push};
use crate::{Client, Error, MetaReply, Result};

/// One answer of a [`Pipeline`].
#[derive(Debug)]
pub enum Reply {
    /// The items of a get.
    Items(Vec<Item>),
    /// The end of a storing command.
    Stored(Stored),
    /// A counter's new value.
    Number(u64),
    /// `DELETED`, `TOUCHED` or `OK`.
    Done,
    /// A meta answer.
    Meta(MetaReply),
    /// An error answer; the connection stays in step.
    Error(Error),
}

/// Collects requests, sends them together and reads the answers.
///
/// Everything is written before anything is read, so a pipeline is meant for at most a few hundred
/// kilobytes in each direction: a server may stop reading while nobody takes its answers.
#[derive(Debug)]
pub struct Pipeline<'a> {
    client: &'a mut Client,
    pending: usize,
}

impl Client {
    /// Begins a pipeline.
    pub fn pipeline(&mut self) -> Pipeline<'_> {
        self.request.clear();
        Pipeline { client: self, pending: 0 }
    }

    /// Reads one answer of any kind.
    ///
    /// # Errors
    /// Broken connections and streams; error answers are [`Reply::Error`].
    pub fn read_reply(&mut self) -> Result<Reply> {
        let line = self.read_line()?;
        if let Some(error) = error_of(line) {
            return Ok(Reply::Error(error));
        }
        let reply = match line {
            b"END" => Reply::Items(Vec::new()),
            b"STORED" => Reply::Stored(Stored::Stored),
            b"NOT_STORED" => Reply::Stored(Stored::NotStored),
            b"EXISTS" => Reply::Stored(Stored::Exists),
            b"NOT_FOUND" => Reply::Stored(Stored::NotFound),
            b"DELETED" | b"TOUCHED" | b"OK" => Reply::Done,
            line => {
                if let Some((key, flags, length, cas)) = parse_value_line(line) {
                    let value = self.read_value(length)?;
                    let mut items = vec![Item { key, value, flags, cas }];
                    items.append(&mut self.read_items()?);
                    Reply::Items(items)
                } else if let Some(number) = number(line) {
                    Reply::Number(number)
                } else if let Some((mut meta, length)) = parse_meta(line) {
                    if let Some(length) = length {
                        meta.value = Some(self.read_value(length)?);
                    }
                    Reply::Meta(meta)
                } else {
                    return Err(Error::unexpected("a pipeline", line));
                }
            }
        };
        Ok(reply)
    }
}

impl Pipeline<'_> {
    /// Adds a get of one or more keys.
    ///
    /// # Errors
    /// [`Error::Usage`] for a key that cannot be sent; nothing was added then.
    pub fn get<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<&mut Self> {
        if keys.is_empty() {
            return Err(Error::Usage("a get needs a key".into()));
        }
        keys.iter().try_for_each(|key| check_key(key.as_ref()))?;
        self.client.request.extend_from_slice(b"get");
        for key in keys {
            self.client.request.push(b' ');
            self.client.request.extend_from_slice(key.as_ref());
        }
        Ok(self.end_of_request())
    }

    /// Adds a set.
    ///
    /// # Errors
    /// As [`Pipeline::get`].
    pub fn set(&mut self, key: &[u8], value: &[u8], flags: u32, expiry: i64) -> Result<&mut Self> {
        check_key(key)?;
        self.client.request.extend_from_slice(b"set ");
        self.client.request.extend_from_slice(key);
        push(&mut self.client.request, format_args!(" {flags} {expiry} {}\r\n", value.len()));
        self.client.request.extend_from_slice(value);
        Ok(self.end_of_request())
    }

    /// Adds a delete.
    ///
    /// # Errors
    /// As [`Pipeline::get`].
    pub fn delete(&mut self, key: &[u8]) -> Result<&mut Self> {
        check_key(key)?;
        self.client.request.extend_from_slice(b"delete ");
        self.client.request.extend_from_slice(key);
        Ok(self.end_of_request())
    }

    /// Adds an incr.
    ///
    /// # Errors
    /// As [`Pipeline::get`].
    pub fn incr(&mut self, key: &[u8], by: u64) -> Result<&mut Self> {
        check_key(key)?;
        self.client.request.extend_from_slice(b"incr ");
        self.client.request.extend_from_slice(key);
        push(&mut self.client.request, format_args!(" {by}"));
        Ok(self.end_of_request())
    }

    /// Adds a meta line, with its value for `ms`. Every line must have an answer (no `q` flag).
    ///
    /// # Errors
    /// [`Error::Usage`] for a line with a line end in it.
    pub fn meta(&mut self, line: &str, value: Option<&[u8]>) -> Result<&mut Self> {
        push_meta(&mut self.client.request, line, value)?;
        self.pending += 1;
        Ok(self)
    }

    /// Sends everything and reads as many answers as requests were added.
    ///
    /// # Errors
    /// Broken connections and streams; error answers are [`Reply::Error`] in their place.
    pub fn run(&mut self) -> Result<Vec<Reply>> {
        let sent = self.client.send_request();
        self.client.request.clear();
        sent?;
        let pending = std::mem::take(&mut self.pending);
        (0..pending).map(|_| self.client.read_reply()).collect()
    }

    fn end_of_request(&mut self) -> &mut Self {
        self.client.request.extend_from_slice(b"\r\n");
        self.pending += 1;
        self
    }
}
