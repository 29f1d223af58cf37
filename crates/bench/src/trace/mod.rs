//! Recorded or synthetic traces: sequences of requests, each with a key, a size, and perhaps a time
//! to live.

mod csv;
mod oracle;
mod synthetic;

use std::collections::HashSet;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufReader, Read};
use std::path::Path;

pub(crate) use synthetic::Synthetic;

use crate::{Error, Result};

/// One request of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Access {
    /// The key as sent to the server.
    pub(crate) key: Vec<u8>,
    /// Length of the value in bytes.
    pub(crate) size: usize,
    /// Time to live in seconds; 0 is forever.
    pub(crate) ttl: u32,
}

/// A trace that is read request by request. The caller passes the same `Access` each time, so a
/// read need not allocate.
pub(crate) trait Trace {
    /// Reads the next request. Returns false at the end.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] with the position of a request that cannot be parsed, and
    /// [`Error::Io`] if the trace cannot be read.
    fn next(&mut self, access: &mut Access) -> Result<bool>;

    /// Returns true if all requests for a key have the same size.
    fn has_fixed_sizes(&self) -> bool {
        false
    }
}

/// The totals of a whole trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TraceTotals {
    pub(crate) requests: u64,
    /// Bytes of the values of all different keys, each with the size of its first request.
    pub(crate) bytes: u64,
    /// Hash of all requests in their order. All runs of one build compute the same hash for a
    /// trace. Another version of the standard library may compute another.
    pub(crate) hash: u64,
}

impl TraceTotals {
    /// Reads a whole trace. Needs at least 8 bytes of memory for each different key.
    ///
    /// # Errors
    /// Returns the errors of the trace.
    pub(crate) fn of(trace: &mut dyn Trace) -> Result<TraceTotals> {
        let (mut totals, mut seen) = (TraceTotals::default(), HashSet::new());
        let (mut access, mut requests) = (Access::default(), DefaultHasher::new());
        while trace.next(&mut access)? {
            totals.requests += 1;
            access.hash(&mut requests);
            let mut hasher = DefaultHasher::new();
            access.key.hash(&mut hasher);
            if seen.insert(hasher.finish()) {
                totals.bytes += access.size as u64;
            }
        }
        totals.hash = requests.finish();
        Ok(totals)
    }
}

/// Opens a trace by name: a file (`.csv` and `.txt` are text, anything else libCacheSim's
/// oracleGeneral) or a built-in one such as `zipf:0.99`, see [`Synthetic`].
///
/// # Errors
/// Returns [`Error::Usage`] or [`Error::Io`] if the trace does not exist or cannot be opened.
pub(crate) fn open(name: &str, synthetic: &Synthetic) -> Result<Box<dyn Trace>> {
    if Path::new(name).exists() { recorded(name) } else { synthetic.named(name) }
}

/// Opens a file with a trace, as [`open`] does.
pub(crate) fn recorded(name: &str) -> Result<Box<dyn Trace>> {
    let path = Path::new(name);
    let doing = || format!("cannot read {name}");
    let file = File::open(path).map_err(|e| Error::io(doing(), e))?;
    let compressed =
        ["zst", "gz", "xz"].iter().any(|ending| path.extension().is_some_and(|e| e == *ending));
    if compressed {
        return Err(Error::usage(format!("{name} is compressed: unpack it first")));
    }
    let file: Box<dyn Read> = Box::new(file);
    let reader = BufReader::with_capacity(1 << 20, file);
    match path.extension().is_some_and(|ending| ending == "csv" || ending == "txt") {
        true => Ok(Box::new(csv::Csv::new(reader, name))),
        false => Ok(Box::new(oracle::Oracle::new(reader, name))),
    }
}

/// The longest key of the protocol, in bytes.
const KEY_MAX: usize = 250;

/// Makes a valid key from any bytes. Replaces bytes that the protocol forbids by `_`. Cuts a key
/// that is too long and appends a hash of all its bytes, so that different long keys stay
/// different.
fn sanitize(bytes: &[u8], key: &mut Vec<u8>) {
    key.clear();
    let kept = if bytes.len() > KEY_MAX { KEY_MAX - 17 } else { bytes.len() };
    key.extend(bytes[..kept].iter().map(|&b| if b <= b' ' || b == 0x7f { b'_' } else { b }));
    if kept < bytes.len() {
        let hash = crate::workload::random::hash(bytes);
        key.extend_from_slice(format!("-{hash:016x}").as_bytes());
    }
}

/// Reads until the buffer is full. Returns the number of bytes read, which is smaller than the
/// buffer at the end of the input.
fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut have = 0;
    while have < buffer.len() {
        match reader.read(&mut buffer[have..])? {
            0 => break,
            read => have += read,
        }
    }
    Ok(have)
}

#[cfg(test)]
pub(crate) fn all(trace: &mut dyn Trace) -> Result<Vec<Access>> {
    let mut accesses = Vec::new();
    let mut access = Access::default();
    while trace.next(&mut access)? {
        accesses.push(access.clone());
    }
    Ok(accesses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_become_a_key() {
        let mut key = Vec::new();
        sanitize(b"a b\tc\x7f", &mut key);
        assert_eq!(key, b"a_b_c_");
        let (mut long, mut other) = (vec![b'x'; 300], vec![b'x'; 300]);
        long.push(b'1');
        other.push(b'2');
        sanitize(&long, &mut key);
        let first = key.clone();
        sanitize(&other, &mut key);
        assert_eq!((first.len(), key.len()), (250, 250));
        assert_ne!(first, key);
    }
}
