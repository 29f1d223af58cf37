//! Traces as lines of `key,size[,ttl]`. A first line that cannot be parsed is a heading. Empty
//! lines and lines that begin with `#` are skipped.

use std::io::BufRead;

use super::{Access, Trace, sanitize};
use crate::{Error, Result};

pub(super) struct Csv<R> {
    reader: R,
    name: String,
    line: Vec<u8>,
    number: u64,
}

impl<R: BufRead> Csv<R> {
    pub(super) fn new(reader: R, name: &str) -> Csv<R> {
        Csv { reader, name: name.to_owned(), line: Vec::new(), number: 0 }
    }

    fn bad(&self) -> Error {
        let line = String::from_utf8_lossy(&self.line[..self.line.len().min(100)]);
        Error::usage(format!(
            "{} line {}: {:?} is not key,size[,ttl]",
            self.name,
            self.number,
            line.trim_end()
        ))
    }
}

impl<R: BufRead> Trace for Csv<R> {
    fn next(&mut self, access: &mut Access) -> Result<bool> {
        loop {
            self.line.clear();
            let read = self
                .reader
                .read_until(b'\n', &mut self.line)
                .map_err(|e| Error::io(format!("cannot read {}", self.name), e))?;
            if read == 0 {
                return Ok(false);
            }
            self.number += 1;
            let line = self.line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            match parse(line) {
                Some((key, size, ttl)) => {
                    sanitize(key, &mut access.key);
                    (access.size, access.ttl) = (size, ttl);
                    return Ok(true);
                }
                None if self.number == 1 => {}
                None => return Err(self.bad()),
            }
        }
    }
}

fn parse(line: &[u8]) -> Option<(&[u8], usize, u32)> {
    let mut fields = line.split(|&b| b == b',').map(<[u8]>::trim_ascii);
    let key = fields.next().filter(|key| !key.is_empty())?;
    let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse::<usize>().ok();
    let size = number(fields.next()?)?;
    let ttl = match fields.next() {
        None | Some(b"") => 0,
        Some(field) => number(field)?.try_into().ok()?,
    };
    fields.next().is_none().then_some((key, size, ttl))
}

#[cfg(test)]
mod tests {
    use super::super::all;
    use super::*;

    fn access(key: &str, size: usize, ttl: u32) -> Access {
        Access { key: key.into(), size, ttl }
    }

    #[test]
    fn lines() {
        let text = b"key,size,ttl\n# a remark\na,10\r\nb , 20 , 60\n\nc d,0,\nlast,5";
        let accesses = all(&mut Csv::new(&text[..], "t")).unwrap();
        let expected =
            [access("a", 10, 0), access("b", 20, 60), access("c_d", 0, 0), access("last", 5, 0)];
        assert_eq!(accesses, expected);
    }

    #[test]
    fn a_bad_line_is_named() {
        for text in ["a,1\nb\n", "a,1\nb,x\n", "a,1\n,1\n", "a,1\nb,1,2,3\n", "a,1\nb,1,-1\n"] {
            let error = all(&mut Csv::new(text.as_bytes(), "t.csv")).unwrap_err().to_string();
            assert!(error.starts_with("t.csv line 2:"), "{error}");
        }
    }
}
