//! The report of a check, as text for people and as JSON for programs. The JSON has the same fields
//! as these types.

use std::fmt;

use larder_log::format::{LaneNumber, Superblock};
use serde::Serialize;

/// The overall state of a store. The variant's number is the exit code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// All data is as it was written.
    #[default]
    Clean,
    /// The next start drops data that was never acknowledged, or whose durability was not promised.
    Torn,
    /// Data that was durable is no longer correct.
    Damaged,
}

impl Verdict {
    pub(super) fn exit_code(self) -> u8 {
        self as u8
    }
}

/// A commit that did not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Torn {
    pub(super) segment: u32,
    /// Offset in the segment at which the incomplete commit begins.
    pub(super) at: u64,
    /// Number of bytes that the next start drops from offset `at` on. Of a jumbo and of a segment
    /// without a header, these are all bytes of its places.
    pub(super) bytes: u64,
}

/// Damage to one segment, or to another part of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Damaged {
    /// The segment; 0 for damage outside of segments.
    pub(super) segment: u32,
    /// Number of bytes in which records may be lost.
    pub(super) bytes: u64,
    /// A lower bound for the number of lost records.
    pub(super) records: u64,
    pub(super) what: String,
    /// True if a start reads the damaged bytes. Otherwise the damage shows only when an item in
    /// them is requested.
    pub(super) met_at_start: bool,
}

/// The settings with which the next start would succeed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Starts {
    /// True if a start with `--when-full evict` would succeed.
    pub(super) evict: bool,
    /// True if a start with `--when-full refuse` would succeed.
    pub(super) refuse: bool,
    /// True if a start with `--when-full refuse --accept-damage` would succeed.
    pub(super) accept_damage: bool,
}

/// Numbers of segments by use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Segments {
    pub(super) all: u32,
    pub(super) free: u32,
    /// Segments with records, not counting jumbos.
    pub(super) in_use: u32,
    /// Segments of `in_use` that are not sealed.
    pub(super) open: u32,
    /// Segments with a summary, which a start reads instead of the records.
    pub(super) summarized: u32,
    /// Jumbos: items longer than half a segment.
    pub(super) jumbos: u32,
    /// Segments that jumbos occupy in addition to their first.
    pub(super) jumbo_parts: u32,
    /// Segments taken out of use because a part of them cannot be read.
    pub(super) retired: u32,
}

/// The lane of this device in a store of several devices, according to the superblock on this
/// device. The superblock of another device may be newer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Lane {
    pub(super) number: u8,
    /// The numbers of all lanes of the store.
    pub(super) of: Vec<u8>,
    /// The number of partitions that this lane has, of 4096.
    pub(super) partitions: usize,
    pub(super) draining: bool,
    /// True if the lane is no longer part of the store.
    pub(super) left: bool,
    /// The number of partitions that are moving between any two lanes of the store.
    pub(super) moving: u16,
}

impl Lane {
    pub(super) fn of(superblock: &Superblock) -> Option<Lane> {
        let lanes = &superblock.lanes;
        let number = lanes.here;
        (!lanes.is_alone()).then(|| Lane {
            number: number.0,
            of: LaneNumber::all()
                .filter(|&lane| lanes.is_member(lane))
                .map(|lane| lane.0)
                .collect(),
            partitions: lanes.owned(number),
            draining: lanes.is_draining(number),
            left: lanes.members[number.index()] != superblock.store_id as u64,
            moving: lanes.motion.map_or(0, |motion| motion.count),
        })
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.left {
            return write!(f, "{}, drained: no part of the store any more", self.number);
        }
        let numbers: Vec<String> = self.of.iter().map(u8::to_string).collect();
        write!(f, "{} of {}, {} of 4096", self.number, numbers.join(" "), self.partitions)?;
        write!(f, " shares of the keys")?;
        if self.draining {
            write!(f, ", draining")?;
        }
        match self.moving {
            0 => Ok(()),
            moving => write!(f, ", {moving} on their way between two lanes"),
        }
    }
}

/// Everything that a check found.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) verdict: Verdict,
    pub(super) path: String,
    pub(super) device_bytes: u64,
    /// The id of the store, in hexadecimal.
    pub(super) store_id: String,
    pub(super) format_version: u32,
    /// The time at which the store was created, in Unix seconds.
    pub(super) created: u64,
    pub(super) segment_size: u32,
    pub(super) stopped_cleanly: bool,
    /// True while a server without durability has the store open, and after that server has
    /// crashed.
    pub(super) volatile: bool,
    /// Set if the device is part of a store of several devices.
    pub(super) lane: Option<Lane>,
    /// The greatest commit number that the superblock, a trailer, a tail or a header proves to have
    /// been used.
    pub(super) last_commit: u64,
    pub(super) segments: Segments,
    /// Number of valid items and tombstones, including older versions.
    pub(super) records: u64,
    pub(super) record_bytes: u64,
    pub(super) live_items: u64,
    pub(super) live_bytes: u64,
    pub(super) dead_bytes: u64,
    /// True if `live_items`, `live_bytes` and `dead_bytes` are estimates from a sample.
    pub(super) estimated: bool,
    pub(super) torn: Vec<Torn>,
    pub(super) damaged: Vec<Damaged>,
    /// Facts worth reporting that are not damage.
    pub(super) notes: Vec<String>,
    /// True if the device is smaller than the store.
    pub(super) cut: bool,
    /// Number of records whose kind only a newer version of the program knows.
    pub(super) newer_records: u64,
    /// The reason why this program must not write to the store: a feature that only a newer program
    /// knows.
    pub(super) read_only: Option<String>,
    /// True if the last stop wrote an index image, so that the next start need not read the log.
    pub(super) has_image: bool,
    /// The settings with which the next start would succeed.
    pub(super) starts: Starts,
    /// What the next start would do with this store.
    pub(super) recovery: Vec<String>,
}

impl Report {
    /// Sets the verdict, the forecast of the next start (`recovery`) and the settings with which it
    /// would succeed. Must be called after all findings are recorded.
    pub(super) fn conclude(&mut self) {
        let emptied = self.volatile && !self.stopped_cleanly;
        self.verdict = match (self.damaged.is_empty(), self.torn.is_empty() && !emptied) {
            (false, _) if !emptied || self.cut => Verdict::Damaged,
            (_, true) => Verdict::Clean,
            _ => Verdict::Torn,
        };
        if self.newer_records > 0 {
            self.notes.push(format!(
                "{} records are of a kind that only a newer Larder knows: they are passed over, and dropped when \
                 their segments are cleaned",
                self.newer_records
            ));
        }
        self.recovery = self.forecast(emptied);
    }

    /// Describes what the next start would do.
    fn forecast(&mut self, emptied: bool) -> Vec<String> {
        if self.cut {
            return vec!["is refused: the device is smaller than the store on it".to_owned()];
        }
        let serves = Starts { evict: true, refuse: true, accept_damage: true };
        if let Some(why) = &self.read_only {
            return vec![format!("is refused: {why}")];
        }
        self.starts = serves;
        if emptied {
            let why = "it was in use with --durability none, and its server did not end cleanly";
            return vec![format!("empties the store: {why}")];
        }
        let about = if self.estimated { "about " } else { "" };
        let mut steps = vec![format!("finds {about}{} items", self.live_items)];
        if !self.torn.is_empty() {
            let bytes: u64 = self.torn.iter().map(|torn| torn.bytes).sum();
            steps.push(format!("drops {bytes} bytes of commits that did not complete"));
        }
        let met = self.damaged.iter().any(|damaged| damaged.met_at_start);
        let dropped = "drops the damaged data and keeps the rest; with --when-full refuse it refuses to \
                       start without --accept-damage";
        match (met, self.has_image) {
            (true, false) => {
                self.starts = Starts { refuse: false, ..serves };
                steps.push(dropped.to_owned());
            }
            (true, true) => {
                steps.push(
                    "loads the index that the last stop wrote, without reading the damaged data"
                        .to_owned(),
                );
                steps.push(format!(
                    "without that index (another --memory), or after a crash, {dropped}"
                ));
            }
            (false, _) => {}
        }
        if self.damaged.iter().any(|damaged| !damaged.met_at_start) {
            steps.push(
                "does not read all damaged data: a request for it gets a miss, or an error with \
                 --when-full refuse"
                    .to_owned(),
            );
        }
        steps
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_store(f)?;
        self.write_contents(f)?;
        self.write_findings(f)
    }
}

impl Report {
    /// Writes which store this is, and how it was stopped.
    fn write_store(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        row(f, "store", format_args!("{}, {}", self.path, size(self.device_bytes)))?;
        row(
            f,
            "identity",
            format_args!(
                "{}, format {}, created {}",
                self.store_id,
                self.format_version,
                date(self.created)
            ),
        )?;
        let state = match (self.stopped_cleanly, self.volatile) {
            (true, _) => "stopped cleanly",
            (false, false) => "not stopped cleanly",
            (false, true) => "not stopped cleanly, without durability",
        };
        row(f, "state", format_args!("{state}, last commit {}", self.last_commit))?;
        if let Some(lane) = &self.lane {
            row(f, "lane", format_args!("{lane}"))?;
        }
        Ok(())
    }

    /// Writes how many segments, records and items the store holds.
    fn write_contents(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = &self.segments;
        row(
            f,
            "segments",
            format_args!(
                "{} of {}: {} free, {} in use ({} open, {} with a summary), {} large items in {}",
                s.all,
                size(self.segment_size.into()),
                s.free,
                s.in_use,
                s.open,
                s.summarized,
                s.jumbos,
                s.jumbos + s.jumbo_parts,
            ),
        )?;
        if s.retired > 0 {
            row(
                f,
                "retired",
                format_args!("{} segments, which cannot be read as a whole", s.retired),
            )?;
        }
        row(f, "records", format_args!("{}, {}", self.records, size(self.record_bytes)))?;
        let about = if self.estimated { "about " } else { "" };
        row(
            f,
            "live",
            format_args!(
                "{about}{} items, {}; dead: {}",
                self.live_items,
                size(self.live_bytes),
                size(self.dead_bytes)
            ),
        )
    }

    /// Writes the damage, what a start would do, and the verdict.
    fn write_findings(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for torn in &self.torn {
            let Torn { segment, at, bytes } = torn;
            row(f, "torn", format_args!("segment {segment} at {at}: {bytes} bytes"))?;
        }
        for Damaged { segment, bytes, records, what, .. } in &self.damaged {
            row(
                f,
                "damaged",
                format_args!(
                    "segment {segment}: {what}; {bytes} bytes, at least {records} records lost"
                ),
            )?;
        }
        for note in &self.notes {
            row(f, "note", format_args!("{note}"))?;
        }
        for step in &self.recovery {
            row(f, "a start", format_args!("{step}"))?;
        }
        let verdict = match self.verdict {
            Verdict::Clean => "clean",
            Verdict::Torn => "nothing that was promised is lost",
            Verdict::Damaged => "damaged",
        };
        row(f, "verdict", format_args!("{verdict}"))
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, value: fmt::Arguments<'_>) -> fmt::Result {
    writeln!(f, "{name:<10} {value}")
}

/// Formats a size with at most one decimal digit.
fn size(bytes: u64) -> String {
    let units = [(40, "TB"), (30, "GB"), (20, "MB"), (10, "KB")];
    for (shift, unit) in units {
        if bytes >> shift > 0 {
            let tenths = (u128::from(bytes) * 10) >> shift;
            return match tenths % 10 {
                0 => format!("{} {unit}", tenths / 10),
                tenth => format!("{}.{tenth} {unit}", tenths / 10),
            };
        }
    }
    format!("{bytes} bytes")
}

/// Formats Unix seconds as date and time in UTC.
fn date(seconds: u64) -> String {
    let (mut days, time) = (seconds / 86_400, seconds % 86_400);
    // No real clock shows such a late date, and the loop below would take long to reach it.
    if days > 3_000_000 {
        return format!("{seconds} seconds after 1970");
    }
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hours, minutes, seconds) = (time / 3600, time / 60 % 60, time % 60);
    format!("{year}-{month:02}-{:02} {hours:02}:{minutes:02}:{seconds:02} UTC", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_dates() {
        assert_eq!(size(0), "0 bytes");
        assert_eq!(size(1536), "1.5 KB");
        assert_eq!(size(64 << 30), "64 GB");
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(date(1_795_262_399), "2026-11-21 11:59:59 UTC");
        assert_eq!(date(1_798_761_600), "2027-01-01 00:00:00 UTC");
        assert_eq!(date(u64::MAX), format!("{} seconds after 1970", u64::MAX));
    }
}
