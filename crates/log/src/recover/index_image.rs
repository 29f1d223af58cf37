//! The log's share of the index image. The log writes and reads the image as a sequence of parts,
//! each in a place that is otherwise free. It also saves the segment table to the image and
//! restores it.

use crate::address::SegmentNumber;
use crate::append::{Sealed, Stream};
use crate::format::BLOCK;
use crate::format::index_image::{ImagePart, ImageRow, PART_HEADER_BYTES, ROW_BYTES, Usage};
use crate::log::DurableLog;
use crate::memory::mapping::PAGE;
use crate::reclaim::quarantine::Quarantined;
use crate::reclaim::usage::End;
use crate::recover::jumbo_footprint;
use crate::segment::{Restored, State};
use crate::store::{SegmentEntry, Store};
use crate::sync::lock;
use std::io::{self, Read, Write};
use std::sync::atomic::Ordering;

/// The largest number of list entries for which memory is reserved before they are read. A damaged
/// image may state any length.
const CHUNK: usize = 4096;

/// Writes an image into free segments. The log must not give these segments to a stream afterwards,
/// until the next start. The image is invalid until the superblock names it.
#[derive(Debug)]
pub struct ImageWriter<'a> {
    store: &'a Store,
    free: Vec<SegmentNumber>,
    first: SegmentNumber,
    current: SegmentNumber,
    /// The current part, with room for its header.
    buffer: Vec<u8>,
    bytes: u64,
}

/// Reads an image. Checks each part before returning bytes of the part. If a part is not as it was
/// written, reports an error of kind [`io::ErrorKind::InvalidData`].
#[derive(Debug)]
pub struct ImageReader<'a> {
    store: &'a Store,
    stop: u64,
    next: SegmentNumber,
    buffer: Vec<u8>,
    at: usize,
    end: usize,
}

/// Returns the error for an image that cannot be used, with the reason.
pub fn unusable(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

impl<'a> ImageWriter<'a> {
    fn write_part(&mut self, next: SegmentNumber) -> io::Result<()> {
        let length = (self.buffer.len() - PART_HEADER_BYTES) as u32;
        let part =
            ImagePart { segment: self.current, stop: self.store.commits.open(), next, length };
        let header = part.encode(&self.buffer[PART_HEADER_BYTES..], &self.store.identity);
        self.buffer[..PART_HEADER_BYTES].copy_from_slice(&header);
        self.buffer.resize(self.buffer.len().next_multiple_of(BLOCK), 0);
        let place = self.store.geometry.segment(self.current);
        self.store.write(place, &self.buffer)?;
        self.bytes += u64::from(length);
        self.buffer.truncate(PART_HEADER_BYTES);
        self.current = next;
        Ok(())
    }

    /// Writes the last part. Returns the first part's place and the image's length in bytes.
    ///
    /// # Errors
    /// Those of the device.
    pub fn finish(mut self) -> io::Result<(SegmentNumber, u64)> {
        self.write_part(0)?;
        Ok((self.first, self.bytes))
    }
}

impl Write for ImageWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() == self.store.segment_size() {
            let next = self.free.pop().ok_or(io::ErrorKind::StorageFull)?;
            self.write_part(next)?;
        }
        let taken = bytes.len().min(self.store.segment_size() - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ImageReader<'_> {
    fn read_part(&mut self) -> io::Result<()> {
        let number = self.next;
        if number == 0 || number as usize > self.store.segment_count() {
            return Err(unusable("the index image ends early"));
        }
        self.buffer.resize(self.store.segment_size(), 0);
        if !self.store.read(self.store.geometry.segment(number), &mut self.buffer)? {
            return Err(unusable("a part of the index image cannot be read"));
        }
        let (part, held) = ImagePart::decode(&self.buffer, &self.store.identity, number, self.stop)
            .filter(|(_, held)| !held.is_empty())
            .ok_or_else(|| unusable("a part of the index image is damaged"))?;
        self.next = part.next;
        self.at = PART_HEADER_BYTES;
        self.end = PART_HEADER_BYTES + held.len();
        Ok(())
    }
}

impl Read for ImageReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.at == self.end {
            self.read_part()?;
        }
        let taken = into.len().min(self.end - self.at);
        into[..taken].copy_from_slice(&self.buffer[self.at..self.at + taken]);
        self.at += taken;
        Ok(taken)
    }
}

/// Writes the length of a list and its numbers.
fn write_list(to: &mut impl Write, numbers: &[u32]) -> io::Result<()> {
    to.write_all(&(numbers.len() as u32).to_le_bytes())?;
    numbers.iter().try_for_each(|number| to.write_all(&number.to_le_bytes()))
}

fn read_u32(from: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn read_list(from: &mut impl Read) -> io::Result<Vec<u32>> {
    let count = read_u32(from)? as usize;
    let mut numbers = Vec::with_capacity(count.min(CHUNK));
    for _ in 0..count {
        numbers.push(read_u32(from)?);
    }
    Ok(numbers)
}

impl<'a> DurableLog<'a> {
    /// Begins an index image. Returns `None` if no segment is free.
    pub fn write_image(self) -> Option<ImageWriter<'a>> {
        let mut free: Vec<_> = lock(&self.free_places).iter().collect();
        let first = free.pop()?;
        let buffer = vec![0; PART_HEADER_BYTES];
        Some(ImageWriter { store: self.store, free, first, current: first, buffer, bytes: 0 })
    }

    /// Returns a reader for the index image of the last stop, if there is one.
    pub fn read_image(self) -> Option<ImageReader<'a>> {
        let superblock = self.store.superblock();
        let (stop, next) = (superblock.next_commit, superblock.image_segment);
        let buffer = Vec::new();
        (superblock.clean && next != 0).then_some(ImageReader {
            store: self.store,
            stop,
            next,
            buffer,
            at: 0,
            end: 0,
        })
    }

    /// Writes the segment table to an image. Everything must be durable and every segment sealed,
    /// and no thread may append or clean.
    ///
    /// # Errors
    /// Those of the image.
    pub fn save_table(self, image: &mut impl Write) -> io::Result<()> {
        // Read once, because both loops below must see the same segments.
        let numbers = self.numbers();
        let mut rows: Vec<ImageRow> = numbers.clone().map(|number| self.row(number)).collect();
        let quarantine = lock(&self.quarantine);
        for entry in quarantine.marked() {
            // The free mark of this quarantined segment is durable. After the stop no thread reads
            // the segment, so the next start may reuse its places.
            for number in self.store.parts(entry.number).into_iter().chain([entry.number]) {
                rows[number as usize - 1].usage = Usage::Free;
            }
        }
        let mut jumbos: Vec<(SegmentNumber, Vec<SegmentNumber>)> = Vec::new();
        for number in numbers {
            let parts = self.store.parts(number);
            if rows[number as usize - 1].usage != Usage::Free && !parts.is_empty() {
                for &part in &parts {
                    rows[part as usize - 1].usage = Usage::Part;
                }
                jumbos.push((number, parts));
            }
        }
        image.write_all(&(rows.len() as u32).to_le_bytes())?;
        rows.iter().try_for_each(|row| image.write_all(&row.encode()))?;
        image.write_all(&(jumbos.len() as u32).to_le_bytes())?;
        for (number, parts) in jumbos {
            image.write_all(&number.to_le_bytes())?;
            write_list(image, &parts)?;
        }
        for stream in [Stream::Hot, Stream::Survivors] {
            write_list(image, &self.sealed(stream))?;
        }
        let waiting: Vec<_> = quarantine.unmarked().collect();
        image.write_all(&(waiting.len() as u32).to_le_bytes())?;
        for entry in waiting {
            image.write_all(&entry.number.to_le_bytes())?;
            write_list(image, &entry.ends)?;
        }
        let kept = self.store.all_kept_ends();
        image.write_all(&(kept.len() as u32).to_le_bytes())?;
        for (number, ends) in kept {
            image.write_all(&number.to_le_bytes())?;
            write_list(image, &ends)?;
        }
        Ok(())
    }

    fn row(self, number: SegmentNumber) -> ImageRow {
        let segment = self.segment(number);
        let entry = self.store.entry(number);
        let meta_version = entry.meta_version.load(Ordering::Relaxed);
        let bad = self.store.is_bad(number);
        let free =
            ImageRow { generation: segment.generation(), meta_version, bad, ..ImageRow::default() };
        let usage = match segment.state() {
            State::Free => return free,
            State::Quarantine => Usage::Quarantine,
            State::Open | State::Sealed | State::Cleaning => Usage::Sealed,
        };
        let (min_expiry, max_expiry, immortal) = segment.expiries();
        ImageRow {
            usage,
            stream: segment.stream(),
            immortal,
            ends: segment.has_ends(),
            jumbo: segment.is_jumbo(),
            resident: !segment.frame().is_null(),
            bad,
            opened: entry.opened.load(Ordering::Relaxed),
            last_commit: entry.last_commit.load(Ordering::Relaxed),
            cover: entry.cover.load(Ordering::Relaxed),
            filled: segment.filled(),
            // Copied tombstones count as dead: the next start determines anew whether they are
            // needed.
            dead: self.dead(number) + entry.held_bytes.load(Ordering::Relaxed),
            end: entry.end.load(Ordering::Relaxed),
            born: segment.born(),
            min_expiry,
            max_expiry,
            jumbo_value: segment.jumbo_value() as u64,
            earliest_death: self.earliest_death(number),
            ..free
        }
    }

    /// Restores the segment table from an image. Returns the segments that had frames, the newest
    /// first. After this call no segment has a frame.
    ///
    /// # Errors
    /// Those of the image, and of the device. After an error the log must not be used.
    pub fn restore_table(self, image: &mut impl Read) -> io::Result<Vec<SegmentNumber>> {
        let count = read_u32(image)?;
        if count as usize > self.store.segment_count() {
            return Err(unusable("the index image is of a larger store"));
        }
        let mut rows = Vec::new();
        let mut bytes = [0; ROW_BYTES];
        for _ in 0..count {
            image.read_exact(&mut bytes)?;
            rows.push(ImageRow::decode(&bytes).ok_or_else(|| unusable("not a row"))?);
        }
        // The store may have grown since the stop. Places beyond the image's rows are free.
        rows.resize(self.store.segment_count(), ImageRow::default());
        for _ in 0..read_u32(image)? {
            let number = self.known(read_u32(image)?)?;
            self.store.set_parts(number, read_list(image)?);
        }
        for (number, row) in self.numbers().zip(&rows) {
            self.restore_row(number, row)?;
        }
        let mut resident = Vec::new();
        for stream in [Stream::Hot, Stream::Survivors] {
            for number in read_list(image)? {
                let row = &rows[self.known(number)? as usize - 1];
                self.enqueue(stream, Sealed { segment: number, sealed: 0 }, End::Back);
                if row.resident {
                    resident.push((std::cmp::Reverse(row.opened), number));
                }
            }
        }
        for _ in 0..read_u32(image)? {
            let number = self.known(read_u32(image)?)?;
            let ends = read_list(image)?;
            self.begin_evicting();
            let (epoch, emptied) = (self.epochs.advance(), self.store.commits.durable());
            let tier = self.tier(number);
            let entry =
                Quarantined { number, tier, frames: 0, epoch, emptied, ends, carried: false };
            lock(&self.quarantine).push(entry);
        }
        for _ in 0..read_u32(image)? {
            let number = self.known(read_u32(image)?)?;
            self.store.keep_ends(number, read_list(image)?);
        }
        let is_free = |row: &ImageRow| row.usage == Usage::Free && !row.bad;
        let free = self.numbers().zip(&rows).filter(|(_, row)| is_free(row));
        lock(&self.free_places).found_free(free.map(|(number, _)| number).rev());
        resident.sort_unstable();
        Ok(resident.into_iter().map(|(_, number)| number).collect())
    }

    /// Checks that a number belongs to this store.
    fn known(self, number: u32) -> io::Result<SegmentNumber> {
        let known = self.numbers().contains(&number);
        known.then_some(number).ok_or_else(|| unusable("no such segment"))
    }

    fn restore_row(self, number: SegmentNumber, row: &ImageRow) -> io::Result<()> {
        let segment = self.segment(number);
        segment.set_generation(row.generation);
        let entry: &SegmentEntry = self.store.entry(number);
        entry.meta_version.store(row.meta_version, Ordering::Relaxed);
        if row.bad {
            self.store.retire(number);
        }
        if matches!(row.usage, Usage::Free | Usage::Part) {
            return Ok(());
        }
        let value = row.jumbo_value as usize;
        segment.restore(Restored {
            frame: std::ptr::null_mut(),
            filled: row.filled,
            stream: row.stream,
            generation: row.generation,
            born: row.born,
            jumbo: (row.jumbo || value != 0).then_some((value, if row.jumbo { PAGE } else { 0 })),
        });
        segment.restore_history((row.min_expiry, row.max_expiry, row.immortal), row.dead);
        if row.ends {
            segment.note_end();
        }
        if row.usage == Usage::Quarantine {
            segment.set_state(State::Quarantine);
        }
        entry.opened.store(row.opened, Ordering::Relaxed);
        entry.last_commit.store(row.last_commit, Ordering::Relaxed);
        entry.cover.store(row.cover, Ordering::Relaxed);
        entry.end.store(row.end, Ordering::Relaxed);
        entry.sealed.store(true, Ordering::Release);
        self.restore_deaths(number, row.earliest_death);
        Ok(())
    }

    /// Reads a segment into a frame, if the segment has none and memory has room. A segment with
    /// damaged parts gets no frame, because a read of a lost record must return an error.
    ///
    /// # Errors
    /// Those of the device, or an error if the bytes on the device are not those of the segment.
    /// Damaged parts inside a normal segment are not an error.
    pub fn warm(self, number: SegmentNumber) -> io::Result<()> {
        let segment = self.segment(number);
        if segment.state() != State::Sealed || !segment.frame().is_null() || segment.is_dead_jumbo()
        {
            return Ok(());
        }
        if segment.is_jumbo() {
            let bytes = jumbo_footprint(segment.filled() as usize) as u64;
            let room = self.budget.limit().saturating_sub(self.budget.used()) > bytes;
            return match room {
                true => self.load_absent_jumbo(number, segment.generation(), || ()).map(drop),
                false => Ok(()),
            };
        }
        let Some(frame) = self.frames.take(&self.budget, false) else { return Ok(()) };
        // SAFETY: the frame was just taken, and no other thread has seen it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(frame, self.segment_size()) };
        let damaged = self.read_segment(number, bytes);
        match damaged {
            Ok(false) => {
                segment.set_frame(frame);
                self.note_changed(number);
            }
            // SAFETY: no other thread has seen the frame.
            Ok(true) | Err(_) => unsafe { self.frames.put(frame, &self.budget) },
        }
        damaged.map(drop)
    }
}
