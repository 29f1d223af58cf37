//! libCacheSim's oracleGeneral format. A trace consists of little-endian records of 24 bytes. Each
//! has the time in seconds (`u32`), the object (`u64`), its size (`u32`) and the time of its next
//! request (`i64`). Only simulators of perfect caches use the last field.

use std::io::Read;

use super::{Access, Trace, fill};
use crate::{Error, Result};

const RECORD: usize = 24;

pub(super) struct Oracle<R> {
    reader: R,
    name: String,
    records: u64,
}

impl<R: Read> Oracle<R> {
    pub(super) fn new(reader: R, name: &str) -> Oracle<R> {
        Oracle { reader, name: name.to_owned(), records: 0 }
    }
}

impl<R: Read> Trace for Oracle<R> {
    fn next(&mut self, access: &mut Access) -> Result<bool> {
        let mut record = [0; RECORD];
        let read = fill(&mut self.reader, &mut record)
            .map_err(|e| Error::io(format!("cannot read {}", self.name), e))?;
        if read == 0 {
            return Ok(false);
        }
        if read < RECORD {
            return Err(Error::usage(format!(
                "{} ends within record {}: is it oracleGeneral?",
                self.name, self.records
            )));
        }
        self.records += 1;
        let [_, _, _, _, object @ .., _, _, _, _, _, _, _, _, _, _, _, _] = record;
        let [_, _, _, _, _, _, _, _, _, _, _, _, size @ .., _, _, _, _, _, _, _, _] = record;
        let object = u64::from_le_bytes(object);
        access.key.clear();
        access.key.extend_from_slice(format!("{object:016x}").as_bytes());
        access.size = u32::from_le_bytes(size) as usize;
        access.ttl = 0;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::super::all;
    use super::*;

    fn record(object: u64, size: u32) -> Vec<u8> {
        let mut bytes = 7u32.to_le_bytes().to_vec();
        bytes.extend(object.to_le_bytes());
        bytes.extend(size.to_le_bytes());
        bytes.extend((-1i64).to_le_bytes());
        bytes
    }

    #[test]
    fn records() {
        let bytes = [record(0xdead_beef, 4096), record(u64::MAX, 0)].concat();
        let accesses = all(&mut Oracle::new(&bytes[..], "t")).unwrap();
        assert_eq!(accesses.len(), 2);
        assert_eq!(
            (accesses[0].key.as_slice(), accesses[0].size),
            (&b"00000000deadbeef"[..], 4096)
        );
        assert_eq!((accesses[1].key.as_slice(), accesses[1].size), (&b"ffffffffffffffff"[..], 0));
    }

    #[test]
    fn a_torn_record_is_an_error() {
        let bytes = record(1, 1);
        for length in 1..RECORD {
            let error = all(&mut Oracle::new(&bytes[..length], "t")).unwrap_err();
            assert!(error.to_string().contains("record 0"), "{error}");
        }
    }
}
