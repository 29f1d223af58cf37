//! A record: one item's bytes in the log. The layout, byte by byte:
//!
//! ```text
//!  0..6   seq         48 bits, little-endian: the version of the key
//!  6      key length  1..=250; 0 in fillers and commit records
//!  7..10  value length, 24 bits; 0xFFFFFF: a jumbo, whose length is kept with its segment
//! 10      kind (bits 0-1 and 7), has cas (2), has expiry (3), has flags (4), stale (5),
//!            inherits reads (6)
//! 11..15  checksum    0 in a log without a store
//! 15..    cas (8) expiry (4) client flags (4), each only if its bit is set
//!  ..     key, value, padding to a multiple of 8
//! ```
//!
//! A record is complete before its address is published. Afterwards only [counters](Kind::Counter)
//! and [limiters](Kind::Limiter) change: their version, their checksum and their value. A thread
//! changes them under the lock of the index stripe, and only until a commit covers the record.
//! Before that, readers without the lock do not read these three fields.

use crate::sync;
use std::marker::PhantomData;

/// Bytes of the fixed part of the header.
pub const HEADER: usize = 15;
/// The largest length of a key, in bytes.
pub const MAX_KEY: usize = 250;
/// Value length in the header of a jumbo's record. The real length is kept with the segment.
pub const JUMBO_LENGTH: usize = 0xFF_FFFF;
/// The largest seq: 48 bits.
pub const MAX_SEQ: u64 = (1 << 48) - 1;

const KIND_MASK: u8 = 0b1000_0011;
const HAS_CAS: u8 = 1 << 2;
const HAS_EXPIRY: u8 = 1 << 3;
const HAS_FLAGS: u8 = 1 << 4;
const STALE: u8 = 1 << 5;
const INHERITS_READS: u8 = 1 << 6;
/// Offset of the checksum, in bytes.
pub const CHECKSUM_AT: usize = 11;

/// The kind of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A stored item.
    #[default]
    Item = 0,
    /// The key was deleted.
    Tombstone = 1,
    /// Padding: unused space.
    Filler = 2,
    /// A segment header or a commit trailer: see [`crate::format::segment`].
    Commit = 3,
    /// An item whose value is a number in decimal digits, which may change in place.
    Counter = 0x80,
    /// An item whose value is the state of a rate limiter, which may change in place.
    Limiter = 0x81,
    /// Stands for the kinds 0x82 and 0x83, which only newer versions of the program write. The
    /// length and the checksum of such a record are computed like those of an item. So a reader can
    /// skip the record and does not take it for damage.
    Newer = 0x82,
}

impl Kind {
    #[inline]
    fn of(meta: u8) -> Kind {
        match meta & KIND_MASK {
            0 => Kind::Item,
            1 => Kind::Tombstone,
            2 => Kind::Filler,
            3 => Kind::Commit,
            0x80 => Kind::Counter,
            0x81 => Kind::Limiter,
            _ => Kind::Newer,
        }
    }

    /// Returns true if a record of this kind holds an item that clients can read.
    #[inline]
    pub fn is_item(self) -> bool {
        matches!(self, Kind::Item) || self.changes_in_place()
    }

    /// Returns true if the value of a record of this kind may change in place.
    #[inline]
    pub fn changes_in_place(self) -> bool {
        matches!(self, Kind::Counter | Kind::Limiter)
    }

    /// Returns true if a record of this kind is a version of its key: an item or a tombstone.
    #[inline]
    pub fn is_version(self) -> bool {
        self == Kind::Tombstone || self.is_item()
    }
}

/// The fields of a record except its key and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// The kind of the record.
    pub kind: Kind,
    /// The version of the key.
    pub seq: u64,
    /// An explicit cas id; without one the seq is the cas id.
    pub cas: Option<u64>,
    /// Expiry in Unix seconds; 0 means never.
    pub expiry: u32,
    /// The client's flags.
    pub flags: u32,
    /// True if the item is marked stale.
    pub stale: bool,
    /// True if the item's read frequency started at 1, because the item replaced a version that had
    /// been read.
    pub inherits_reads: bool,
}

impl Fields {
    /// Returns the fields of a record of this kind, without any of the optional ones.
    pub fn of_kind(kind: Kind) -> Fields {
        Fields { kind, ..Fields::default() }
    }
}

/// The lengths of a record's parts, which determine their offsets.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Bytes before the key.
    pub header: usize,
    /// Bytes of the key.
    pub key: usize,
    /// Bytes of the value.
    pub value: usize,
}

impl Layout {
    /// Returns the layout of a record with these fields.
    #[inline]
    pub fn of(fields: &Fields, key: usize, value: usize) -> Self {
        debug_assert!(key <= MAX_KEY);
        let header = HEADER
            + if fields.cas.is_some() { 8 } else { 0 }
            + if fields.expiry != 0 { 4 } else { 0 }
            + if fields.flags != 0 { 4 } else { 0 };
        Layout { header, key, value }
    }

    /// Returns the number of bytes that the record takes in the log.
    #[inline]
    pub fn size(&self) -> usize {
        (self.header + self.key + self.value).next_multiple_of(8)
    }

    /// Returns the offset of the value in the record.
    #[inline]
    pub fn value_offset(&self) -> usize {
        self.header + self.key
    }
}

/// Writes a record at `at` except for its value, with a zero checksum.
///
/// # Safety
/// `at` must be valid for writes of `layout.size()` bytes, which no other thread reads yet.
#[inline]
pub unsafe fn write_head(at: *mut u8, layout: &Layout, fields: &Fields, key: &[u8]) {
    debug_assert!(fields.seq <= MAX_SEQ && key.len() == layout.key);
    sync::writes(at);
    let mut meta = fields.kind as u8;
    if fields.stale {
        meta |= STALE;
    }
    if fields.inherits_reads {
        meta |= INHERITS_READS;
    }
    let value = layout.value.min(JUMBO_LENGTH) as u64;
    let mut next = HEADER;
    // SAFETY: all writes lie inside `layout.size()` bytes: the two words cover the first 16, and a
    // record is at least 16 bytes long; the optional fields are counted in `layout.header`.
    unsafe {
        at.cast::<u64>().write_unaligned(fields.seq | (layout.key as u64) << 48 | value << 56);
        at.add(8).cast::<u64>().write_unaligned(value >> 8);
        if let Some(cas) = fields.cas {
            meta |= HAS_CAS;
            at.add(next).cast::<u64>().write_unaligned(cas);
            next += 8;
        }
        if fields.expiry != 0 {
            meta |= HAS_EXPIRY;
            at.add(next).cast::<u32>().write_unaligned(fields.expiry);
            next += 4;
        }
        if fields.flags != 0 {
            meta |= HAS_FLAGS;
            at.add(next).cast::<u32>().write_unaligned(fields.flags);
            next += 4;
        }
        at.add(10).write(meta);
        debug_assert_eq!(next, layout.header);
        at.add(next).copy_from_nonoverlapping(key.as_ptr(), key.len());
    }
}

/// Writes the head of a filler at `at`. The filler takes `bytes` bytes, whose contents are unused.
///
/// # Safety
/// `at` must be valid for writes of `bytes` bytes, which no other thread reads yet. `bytes` must be
/// a multiple of 8, at least 16 and at most 16 MiB.
pub unsafe fn write_filler(at: *mut u8, bytes: usize) {
    debug_assert!(bytes >= 16 && bytes.is_multiple_of(8) && bytes - HEADER < JUMBO_LENGTH);
    let layout = Layout { header: HEADER, key: 0, value: bytes - HEADER };
    // SAFETY: the caller promises what `write_head` requires: `bytes` bytes that no other thread
    // reads yet.
    unsafe { write_head(at, &layout, &Fields::of_kind(Kind::Filler), &[]) }
}

/// Changes the version and the value of a record in place and clears its checksum. The new value
/// has the same length.
///
/// # Safety
/// `at` must point to a whole record with this layout, valid for writes. Records of its kind must
/// be able to [change in place](Kind::changes_in_place). The calling thread must hold the lock of
/// the key's index stripe: other threads read the record's version and value only under that lock.
/// No commit may cover the record before the change is complete.
#[inline]
pub unsafe fn change_value(at: *mut u8, layout: &Layout, seq: u64, (first, rest): (&[u8], &[u8])) {
    debug_assert!(seq <= MAX_SEQ && first.len() + rest.len() == layout.value);
    sync::writes(changing_part(at));
    // SAFETY: all writes lie in the record. Only the version (six bytes), the checksum and the
    // value are written, and readers without the lock read none of the three.
    unsafe {
        at.cast::<u32>().write_unaligned(seq as u32);
        at.add(4).cast::<u16>().write_unaligned((seq >> 32) as u16);
        write_checksum(at, 0);
        let value = at.add(layout.value_offset());
        value.copy_from_nonoverlapping(first.as_ptr(), first.len());
        value.add(first.len()).copy_from_nonoverlapping(rest.as_ptr(), rest.len());
    }
}

/// Loom models track the bytes of a record that may change in place and its other bytes separately.
/// Returns the address that stands for the former in [`sync::reads`] and [`sync::writes`]; the
/// address `at` stands for the latter.
fn changing_part(at: *const u8) -> *const u8 {
    at.wrapping_add(1)
}

/// Writes a record's checksum.
///
/// # Safety
/// `at` must point to a record whose head has been written. It must be valid for writes, and no
/// other thread may read the checksum yet.
#[inline]
pub unsafe fn write_checksum(at: *mut u8, checksum: u32) {
    // SAFETY: the checksum lies in the fixed part of the head.
    unsafe { at.add(CHECKSUM_AT).cast::<u32>().write_unaligned(checksum) }
}

/// The parsed head of a record: all bytes before its value. These bytes are not verified.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// The kind of the record.
    pub kind: Kind,
    /// The record's fields.
    pub fields: Fields,
    /// The lengths of the record's parts.
    pub layout: Layout,
    /// The record's key.
    pub key: &'a [u8],
    /// The record's checksum, not verified.
    pub checksum: u32,
}

impl<'a> Head<'a> {
    /// Parses the head at the start of `bytes`, which may hold anything. Returns `None` if these
    /// bytes cannot begin a record, or do not contain its whole head. The value need not be there.
    /// If `bytes` are from a jumbo's segment, `jumbo` must be the length of its value; otherwise it
    /// is `None`. With `None`, returns `None` for a jumbo's record.
    pub fn parse(bytes: &'a [u8], jumbo: Option<usize>) -> Option<Self> {
        let (fixed, rest) = bytes.split_first_chunk::<HEADER>()?;
        let [s0, s1, s2, s3, s4, s5, key, v0, v1, v2, meta, c0, c1, c2, c3] = *fixed;
        let (kind, key) = (Kind::of(meta), usize::from(key));
        let plausible = match kind {
            Kind::Item | Kind::Tombstone | Kind::Counter | Kind::Limiter => key > 0,
            Kind::Filler | Kind::Commit => meta & !KIND_MASK == 0 && key == 0,
            Kind::Newer => true,
        };
        if !plausible || key > MAX_KEY {
            return None;
        }
        let mut value = u32::from_le_bytes([v0, v1, v2, 0]) as usize;
        if value == JUMBO_LENGTH {
            value = jumbo?;
        }
        let mut rest = rest;
        let mut fields = Fields {
            kind,
            seq: u64::from_le_bytes([s0, s1, s2, s3, s4, s5, 0, 0]),
            stale: meta & STALE != 0,
            inherits_reads: meta & INHERITS_READS != 0,
            ..Fields::default()
        };
        if meta & HAS_CAS != 0 {
            let (cas, behind) = rest.split_first_chunk::<8>()?;
            (fields.cas, rest) = (Some(u64::from_le_bytes(*cas)), behind);
        }
        for (bit, field) in [(HAS_EXPIRY, &mut fields.expiry), (HAS_FLAGS, &mut fields.flags)] {
            if meta & bit != 0 {
                let (number, behind) = rest.split_first_chunk::<4>()?;
                (*field, rest) = (u32::from_le_bytes(*number), behind);
            }
        }
        let layout = Layout { header: bytes.len() - rest.len(), key, value };
        let key = rest.get(..key)?;
        let checksum = u32::from_le_bytes([c0, c1, c2, c3]);
        Some(Head { kind, fields, layout, key, checksum })
    }

    /// Returns the value's length if the whole record, with its padding, fits into `bytes` bytes.
    fn checked(&self, bytes: usize) -> Option<usize> {
        let room = bytes.checked_sub(self.layout.value_offset())?;
        let fits = self.layout.value <= room && self.layout.size() <= bytes;
        fits.then_some(self.layout.value)
    }
}

/// A record in RAM, valid for `'a`: until its reader's next quiescent point.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    at: *const u8,
    value_len: usize,
    _frame: PhantomData<&'a [u8]>,
}

impl<'a> Record<'a> {
    /// Parses the whole record at the start of `bytes`, which may hold anything. Returns `None` if
    /// these bytes cannot begin a record, or do not contain all of it. Does not verify the
    /// checksum. `jumbo` is as in [`Head::parse`].
    pub fn parse(bytes: &'a [u8], jumbo: Option<usize>) -> Option<Self> {
        let value_len = Head::parse(bytes, jumbo)?.checked(bytes.len())?;
        Some(Record { at: bytes.as_ptr(), value_len, _frame: PhantomData })
    }

    /// Returns the record at `at`. Calls `jumbo_len` only if the header says that the record is a
    /// jumbo.
    ///
    /// # Safety
    /// `at` must point to a whole record whose bytes this thread can see, in memory that stays for
    /// `'a`. The record's bytes must not change, except those that may change in place. The
    /// version, the checksum and the value of a record that [changes in
    /// place](Kind::changes_in_place) may be read only while no thread changes them: under the
    /// stripe's lock, or once a commit covers the record.
    #[inline]
    pub unsafe fn at(at: *const u8, jumbo_len: impl FnOnce() -> usize) -> Self {
        sync::reads(at);
        // Reads only the bytes from 7 on: another thread may be changing the version in front of
        // them.
        // SAFETY: the caller gives a whole record, so all of its header is readable.
        let (low, high) = unsafe { (*at.add(7), at.add(8).cast::<u16>().read_unaligned()) };
        let mut value_len = usize::from(low) | usize::from(high) << 8;
        if value_len == JUMBO_LENGTH {
            value_len = jumbo_len();
        }
        Record { at, value_len, _frame: PhantomData }
    }

    #[inline]
    fn meta(&self) -> u8 {
        // SAFETY: a `Record` is a whole record, readable for `'a`.
        unsafe { *self.at.add(10) }
    }

    /// Returns the kind of the record.
    #[inline]
    pub fn kind(&self) -> Kind {
        Kind::of(self.meta())
    }

    /// Returns the version of the key.
    #[inline]
    pub fn seq(&self) -> u64 {
        sync::reads(changing_part(self.at));
        // SAFETY: a `Record` is a whole record, readable for `'a`.
        unsafe { self.at.cast::<u64>().read_unaligned() & MAX_SEQ }
    }

    /// Returns the record's checksum without verifying it.
    #[inline]
    pub fn checksum(&self) -> u32 {
        // SAFETY: a `Record` is a whole record, readable for `'a`.
        unsafe { self.at.add(CHECKSUM_AT).cast::<u32>().read_unaligned() }
    }

    /// Returns all bytes before the record's value.
    #[inline]
    pub fn head(&self) -> &'a [u8] {
        // SAFETY: a `Record` is a whole record, readable and unchanged for `'a`.
        unsafe { std::slice::from_raw_parts(self.at, self.layout().value_offset()) }
    }

    /// Returns a pointer to the first byte of the record.
    #[inline]
    pub fn pointer(&self) -> *const u8 {
        self.at
    }

    #[inline]
    fn header_len(&self) -> usize {
        let meta = self.meta();
        HEADER
            + if meta & HAS_CAS != 0 { 8 } else { 0 }
            + if meta & HAS_EXPIRY != 0 { 4 } else { 0 }
            + if meta & HAS_FLAGS != 0 { 4 } else { 0 }
    }

    /// Returns the lengths of the record's parts.
    #[inline]
    pub fn layout(&self) -> Layout {
        Layout {
            header: self.header_len(),
            // SAFETY: a `Record` is a whole record, readable for `'a`.
            key: usize::from(unsafe { *self.at.add(6) }),
            value: self.value_len,
        }
    }

    /// Returns the number of bytes that the record takes in the log.
    #[inline]
    pub fn size(&self) -> usize {
        self.layout().size()
    }

    /// Returns the key.
    #[inline]
    pub fn key(&self) -> &'a [u8] {
        sync::reads(self.at);
        let layout = self.layout();
        // SAFETY: the key lies inside the record, which is readable and unchanged for `'a`.
        unsafe { std::slice::from_raw_parts(self.at.add(layout.header), layout.key) }
    }

    /// Returns the value.
    #[inline]
    pub fn value(&self) -> &'a [u8] {
        sync::reads(self.at);
        sync::reads(changing_part(self.at));
        let layout = self.layout();
        // SAFETY: the value lies inside the record, which is readable and unchanged for `'a`.
        unsafe { std::slice::from_raw_parts(self.at.add(layout.value_offset()), layout.value) }
    }

    #[inline]
    fn optional<T: Copy>(&self, bit: u8, before: usize) -> Option<T> {
        // SAFETY: if the bit is set, the header has the field, `before` bytes behind the fixed
        // part.
        (self.meta() & bit != 0)
            .then(|| unsafe { self.at.add(HEADER + before).cast::<T>().read_unaligned() })
    }

    #[inline]
    fn len_if(&self, bit: u8, len: usize) -> usize {
        if self.meta() & bit != 0 { len } else { 0 }
    }

    /// Returns the explicit cas id, if there is one.
    #[inline]
    pub fn explicit_cas(&self) -> Option<u64> {
        self.optional(HAS_CAS, 0)
    }

    /// Returns the cas id: the explicit one, or else the seq.
    #[inline]
    pub fn cas(&self) -> u64 {
        self.explicit_cas().unwrap_or_else(|| self.seq())
    }

    /// Returns the Unix second at which the item expires; 0 means never.
    #[inline]
    pub fn expiry(&self) -> u32 {
        self.optional(HAS_EXPIRY, self.len_if(HAS_CAS, 8)).unwrap_or(0)
    }

    /// Returns the client's flags.
    #[inline]
    pub fn flags(&self) -> u32 {
        let before = self.len_if(HAS_CAS, 8) + self.len_if(HAS_EXPIRY, 4);
        self.optional(HAS_FLAGS, before).unwrap_or(0)
    }

    /// Returns true if the item is marked stale.
    #[inline]
    pub fn is_stale(&self) -> bool {
        self.meta() & STALE != 0
    }

    /// Returns true if the read frequency started at 1 because the previous version had been read.
    #[inline]
    pub fn inherits_reads(&self) -> bool {
        self.meta() & INHERITS_READS != 0
    }

    /// Returns all fields except key and value.
    pub fn fields(&self) -> Fields {
        Fields {
            kind: self.kind(),
            seq: self.seq(),
            cas: self.explicit_cas(),
            expiry: self.expiry(),
            flags: self.flags(),
            stale: self.is_stale(),
            inherits_reads: self.inherits_reads(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn round_trip(fields: Fields, key: &[u8], value: &[u8]) {
        let layout = Layout::of(&fields, key.len(), value.len());
        let mut memory = vec![0xAAAA_AAAA_AAAA_AAAAu64; layout.size() / 8];
        let at = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: the vector is aligned, as long as the layout says, and this test's own.
        let record = unsafe {
            write_head(at, &layout, &fields, key);
            at.add(layout.value_offset()).copy_from_nonoverlapping(value.as_ptr(), value.len());
            Record::at(at, || unreachable!())
        };
        assert_eq!(record.kind(), fields.kind);
        assert_eq!(record.fields(), fields);
        assert_eq!(record.key(), key);
        assert_eq!(record.value(), value);
        assert_eq!(record.size(), layout.size());
        assert_eq!(record.cas(), fields.cas.unwrap_or(fields.seq));
    }

    #[test]
    fn every_combination_of_optional_fields_reads_back() {
        for bits in 0..32u32 {
            let fields = Fields {
                kind: [Kind::Item, Kind::Counter, Kind::Limiter][bits as usize % 3],
                seq: MAX_SEQ - u64::from(bits),
                cas: (bits & 1 != 0).then_some(u64::MAX - 5),
                expiry: if bits & 2 != 0 { u32::MAX } else { 0 },
                flags: if bits & 4 != 0 { 0xDEAD_BEEF } else { 0 },
                stale: bits & 8 != 0,
                inherits_reads: bits & 16 != 0,
            };
            for key in [1usize, 2, 15, 249, 250] {
                for value in [0usize, 1, 50, 255, 256, 65_536, 70_001] {
                    round_trip(fields, &vec![b'k'; key], &vec![b'v'; value]);
                }
            }
        }
    }

    #[test]
    fn a_change_in_place_changes_only_version_checksum_and_value() {
        let fields = Fields {
            kind: Kind::Counter,
            seq: 0xFFFF_FFFF,
            expiry: 7,
            flags: 9,
            inherits_reads: true,
            ..Fields::default()
        };
        let layout = Layout::of(&fields, 3, 5);
        let mut memory = vec![0u64; layout.size() / 8 + 1];
        let at = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: the vector is long enough and this test's own.
        let record = unsafe {
            write_head(at, &layout, &fields, b"key");
            write_checksum(at, u32::MAX);
            change_value(at, &layout, 0x1_0000_0000, (b"12", b"345"));
            Record::at(at, || unreachable!())
        };
        assert_eq!(record.fields(), Fields { seq: 0x1_0000_0000, ..fields });
        assert_eq!(
            (record.key(), record.value(), record.checksum()),
            (&b"key"[..], &b"12345"[..], 0)
        );
        assert_eq!(memory.last(), Some(&0));
    }

    #[test]
    fn a_small_item_is_eighty_bytes() {
        assert_eq!(Layout::of(&Fields::default(), 15, 50).size(), 80);
    }
}
