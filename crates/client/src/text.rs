//! The text commands.

use std::fmt;
use std::io::Write;

use crate::{Client, Error, Reply, Result};

/// The largest sum of the rows of one `stats`, in bytes. A server that never ends its reply must
/// not fill memory.
const STATS_MAX: usize = 64 << 20;

/// An item that a get found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The key as the server wrote it.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// The client flags.
    pub flags: u32,
    /// The cas id, if the request was of the `gets` family.
    pub cas: Option<u64>,
}

/// The result of a conditional write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The value was stored.
    Stored,
    /// The condition (add, replace, append, prepend) did not hold.
    NotStored,
    /// The item has another cas id.
    Exists,
    /// There is no item with which to compare the cas id.
    NotFound,
}

impl Client {
    /// Returns the item of `key`, if there is one.
    ///
    /// # Errors
    /// Every method that sends a request returns an [`Error`] if the request cannot be sent, if the
    /// server refuses it, or if the reply is missing or malformed.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Item>> {
        Ok(self.retrieve("get", &[key])?.pop())
    }

    /// Does the same as [`Client::get`], and also returns the cas id.
    pub fn gets(&mut self, key: &[u8]) -> Result<Option<Item>> {
        Ok(self.retrieve("gets", &[key])?.pop())
    }

    /// Returns the items of `keys` that exist, in the order of the reply.
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<Vec<Item>> {
        self.retrieve("get", keys)
    }

    /// Does the same as [`Client::get_many`], and also returns the cas ids.
    pub fn gets_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<Vec<Item>> {
        self.retrieve("gets", keys)
    }

    /// Returns an item and sets its expiry in the same request. `expiry` is a number of seconds
    /// from now. A number larger than 30 days is a Unix time, and 0 means never.
    pub fn gat(&mut self, key: &[u8], expiry: i64) -> Result<Option<Item>> {
        Ok(self.retrieve(&format!("gat {expiry}"), &[key])?.pop())
    }

    /// Does the same as [`Client::gat`], and also returns the cas id.
    pub fn gats(&mut self, key: &[u8], expiry: i64) -> Result<Option<Item>> {
        Ok(self.retrieve(&format!("gats {expiry}"), &[key])?.pop())
    }

    /// Stores a value unconditionally.
    pub fn set(&mut self, key: &[u8], value: &[u8], flags: u32, expiry: i64) -> Result<()> {
        match self.store("set", key, value, flags, expiry, None)? {
            Stored::Stored => Ok(()),
            other => Err(Error::Protocol(format!("a set was answered with {other:?}"))),
        }
    }

    /// Stores a value if there is no item of `key`.
    pub fn add(&mut self, key: &[u8], value: &[u8], flags: u32, expiry: i64) -> Result<Stored> {
        self.store("add", key, value, flags, expiry, None)
    }

    /// Stores a value if there is an item of `key`.
    pub fn replace(&mut self, key: &[u8], value: &[u8], flags: u32, expiry: i64) -> Result<Stored> {
        self.store("replace", key, value, flags, expiry, None)
    }

    /// Appends bytes to the value of an existing item.
    pub fn append(&mut self, key: &[u8], value: &[u8]) -> Result<Stored> {
        self.store("append", key, value, 0, 0, None)
    }

    /// Adds bytes in front of the value of an existing item.
    pub fn prepend(&mut self, key: &[u8], value: &[u8]) -> Result<Stored> {
        self.store("prepend", key, value, 0, 0, None)
    }

    /// Stores a value if the item still has this cas id.
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

    /// Deletes an item. Returns false if there was none.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool> {
        self.send("delete", &[key], format_args!(""), None)?;
        self.answer("delete", |reply| match reply {
            Reply::Deleted => Some(true),
            Reply::NotFound => Some(false),
            _ => None,
        })
    }

    /// Sets the expiry of an item. Returns false if there is no such item.
    pub fn touch(&mut self, key: &[u8], expiry: i64) -> Result<bool> {
        self.send("touch", &[key], format_args!(" {expiry}"), None)?;
        self.answer("touch", |reply| match reply {
            Reply::Touched => Some(true),
            Reply::NotFound => Some(false),
            _ => None,
        })
    }

    /// Adds to a counter and returns its new value, or `None` if there is no such counter.
    pub fn incr(&mut self, key: &[u8], by: u64) -> Result<Option<u64>> {
        self.count("incr", key, by)
    }

    /// Subtracts from a counter, down to 0 at most, and returns its new value. Returns `None` if
    /// there is no such counter.
    pub fn decr(&mut self, key: &[u8], by: u64) -> Result<Option<u64>> {
        self.count("decr", key, by)
    }

    /// Removes all items, at once or after `delay` seconds.
    pub fn flush_all(&mut self, delay: Option<u32>) -> Result<()> {
        self.command("flush_all", delay)?;
        self.answer("flush_all", |reply| (reply == Reply::Ok).then_some(()))
    }

    /// Returns the server's version, without the word `VERSION`.
    pub fn version(&mut self) -> Result<String> {
        self.command("version", None::<&str>)?;
        self.answer("version", |reply| match reply {
            Reply::Version(version) => Some(String::from_utf8_lossy(version).into_owned()),
            _ => None,
        })
    }

    /// Returns the rows of `stats` or of `stats GROUP` in the order of the server.
    pub fn stats(&mut self, group: Option<&str>) -> Result<Vec<(String, String)>> {
        self.command("stats", group)?;
        let mut rows = Vec::new();
        let row = |reply: Reply<'_>| match reply {
            Reply::Stat(row) => {
                let row = String::from_utf8_lossy(row);
                let (name, value) = row.split_once(' ').unwrap_or((&row, ""));
                Some(Some((name.to_owned(), value.to_owned())))
            }
            // The reply to `stats reset` is RESET, that to `stats detail on` is OK.
            Reply::End | Reply::Reset | Reply::Ok => Some(None),
            _ => None,
        };
        let mut bytes = 0;
        while let Some(row) = self.answer("stats", row)? {
            bytes += row.0.len() + row.1.len() + 1;
            if bytes > STATS_MAX {
                return Err(Error::Protocol(format!("stats has more than {STATS_MAX} bytes")));
            }
            rows.push(row);
        }
        Ok(rows)
    }

    fn retrieve<K: AsRef<[u8]>>(&mut self, verb: &str, keys: &[K]) -> Result<Vec<Item>> {
        let mut items = Vec::new();
        if keys.is_empty() {
            return Ok(items);
        }
        self.send(verb, keys, format_args!(""), None)?;
        loop {
            match self.replies.reply()? {
                (Reply::Value { key, flags, cas, .. }, value) if items.len() < keys.len() => {
                    items.push(Item { key: key.to_vec(), value: value.to_vec(), flags, cas });
                }
                (Reply::End, _) => return Ok(items),
                (Reply::Error(line), _) => return Err(Error::answered(line)),
                _ => return Err(Error::unexpected("a get", self.replies.last_line())),
            }
        }
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
        let length = value.len();
        let cas = cas.map(|cas| format!(" {cas}")).unwrap_or_default();
        let rest = format_args!(" {flags} {expiry} {length}{cas}");
        self.send(verb, &[key], rest, Some(value))?;
        self.answer(verb, |reply| match reply {
            Reply::Stored => Some(Stored::Stored),
            Reply::NotStored => Some(Stored::NotStored),
            Reply::Exists => Some(Stored::Exists),
            Reply::NotFound => Some(Stored::NotFound),
            _ => None,
        })
    }

    fn count(&mut self, verb: &str, key: &[u8], by: u64) -> Result<Option<u64>> {
        self.send(verb, &[key], format_args!(" {by}"), None)?;
        self.answer(verb, |reply| match reply {
            Reply::Number(number) => Some(Some(number)),
            Reply::NotFound => Some(None),
            _ => None,
        })
    }

    /// Sends a command without a key.
    fn command(&mut self, verb: &str, argument: Option<impl fmt::Display>) -> Result<()> {
        let line = argument.map_or(verb.to_owned(), |argument| format!("{verb} {argument}"));
        if line.contains(['\r', '\n']) {
            return Err(Error::Usage("a command must be one line".into()));
        }
        self.send_raw(format!("{line}\r\n").as_bytes())
    }

    /// Sends a command line with `keys` and `rest`, followed by `value` if there is one.
    fn send<K: AsRef<[u8]>>(
        &mut self,
        verb: &str,
        keys: &[K],
        rest: fmt::Arguments<'_>,
        value: Option<&[u8]>,
    ) -> Result<()> {
        let mut request = verb.as_bytes().to_vec();
        for key in keys {
            check_key(key.as_ref())?;
            request.push(b' ');
            request.extend_from_slice(key.as_ref());
        }
        // Writing to a vector cannot fail.
        let _ = request.write_fmt(format_args!("{rest}\r\n"));
        for piece in value.into_iter().flat_map(|value| [value, b"\r\n"]) {
            request.extend_from_slice(piece);
        }
        self.send_raw(&request)
    }

    /// Reads one reply. `read` returns `None` for a reply that does not belong to `request`.
    fn answer<T>(&mut self, request: &str, read: impl FnOnce(Reply<'_>) -> Option<T>) -> Result<T> {
        match self.replies.reply()?.0 {
            Reply::Error(line) => Err(Error::answered(line)),
            reply => match read(reply) {
                Some(answer) => Ok(answer),
                None => Err(Error::unexpected(request, self.replies.last_line())),
            },
        }
    }
}

/// Refuses keys that would break the request line, before they are sent.
fn check_key(key: &[u8]) -> Result<()> {
    let reason = match key {
        [] => "is empty",
        key if key.len() > 250 => "is longer than 250 bytes",
        key if key.iter().any(|&b| b <= b' ' || b == 0x7f) => "holds a space or a control byte",
        _ => return Ok(()),
    };
    Err(Error::Usage(format!("the key {:?} {reason}", String::from_utf8_lossy(key))))
}
