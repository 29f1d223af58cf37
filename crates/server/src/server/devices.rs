//! Checks the devices of `--store` before any of them is opened. If a device is given in the wrong
//! role, for example a lower device as a fast one, the error names the command line that would be
//! right. The start creates or changes nothing on the devices before this check has succeeded.

use std::fmt::Write;
use std::path::PathBuf;

use larder_disk::{OpenError, PathInfo};
use tracing::warn;

use larder_engine::{Content, LABEL_AREA, LabelError, StoreError, SuperblockError};

use super::error::StartError;
use crate::settings::{LanePaths, Settings, StorePath};

/// A device that the settings name, and its content.
struct ConfiguredDevice<'a> {
    store: &'a StorePath,
    info: PathInfo,
    content: Content,
}

impl ConfiguredDevice<'_> {
    fn name(&self) -> String {
        self.store.path.display().to_string()
    }

    /// Returns the store id of the lane that the device belongs to.
    fn lane_id(&self) -> Option<u128> {
        match &self.content {
            Content::Store(superblock) => Some(superblock.store_id),
            Content::Lower(label) => Some(label.store_id),
            _ => None,
        }
    }

    /// Returns true if the device is the fast device of a lane that also has a lower device.
    fn has_lower(&self) -> bool {
        matches!(&self.content, Content::Store(superblock) if superblock.has_lower())
    }

    /// Describes the lane that the device belongs to.
    fn lane(&self) -> String {
        match &self.content {
            Content::Store(superblock) => format!("lane {} of a store", superblock.lanes.here),
            Content::Lower(label) => match label.lane {
                Some(lane) => format!("lane {lane} of a store"),
                None => "a lane of a store".to_owned(),
            },
            _ => "a store".to_owned(),
        }
    }
}

/// The number of bytes that the store uses on each device.
pub(super) type Used = Vec<(PathBuf, u64)>;

/// Checks that every device of the store is given only once, and in its role. Returns the number of
/// bytes that the store uses on each device.
pub(super) fn check(settings: &Settings) -> Result<Used, StartError> {
    let mut given: Vec<ConfiguredDevice<'_>> = Vec::new();
    for store in &settings.store {
        let info = PathInfo::at(&store.path).map_err(StartError::Store)?;
        if let Some(first) = given.iter().find(|other| other.info.is_same(&info)) {
            let (first, second) = (first.name(), store.path.display());
            let what = format!("--store names the same device twice, as {first} and as {second}");
            return Err(StartError::Misplaced { what, instead: None });
        }
        let content = Content::of(&info.head);
        if content == Content::Other {
            return Err(StartError::Store(OpenError::Foreign { path: info.path }));
        }
        if let Some(error) = newer(&content, store) {
            return Err(StartError::Recovery { store: store.path.display().to_string(), error });
        }
        given.push(ConfiguredDevice { store, info, content });
    }
    for &lane in &settings.forget {
        let knows = |given: &ConfiguredDevice<'_>| match &given.content {
            Content::Store(superblock) => superblock.lanes.is_member(lane),
            _ => false,
        };
        if !given.iter().any(knows) {
            let reason = "the store has no lane of that number, or has forgotten it";
            let lane = lane.0;
            warn!(event = "nothing_to_forget", lane, reason, advice = "leave --forget out");
        }
    }
    let lanes = settings.lanes();
    let mut wrong = lanes.iter().find_map(|lane| wrong_fast(&given, lane));
    wrong = wrong.or_else(|| lanes.iter().find_map(|lane| wrong_lower(&given, lane)));
    if let Some(what) = wrong {
        let instead = Some(command_line(&given));
        return Err(StartError::Misplaced { what, instead });
    }
    let mut used = Used::new();
    for (part, bytes) in lanes.iter().flat_map(|lane| used_parts(&given, lane)) {
        // A device that is smaller than the store needs has lost data. Growing it at the start
        // would hide the loss.
        if part.info.length < bytes {
            let error = StoreError::Shrunk { needed: bytes };
            return Err(StartError::Recovery { store: part.name(), error });
        }
        used.push((part.store.path.clone(), bytes));
    }
    Ok(used)
}

/// Returns an error if a newer version of Larder wrote the device. The start must not change such a
/// device, not even its size.
fn newer(content: &Content, store: &StorePath) -> Option<StoreError> {
    match content {
        Content::Store(superblock) => superblock.may_write().err().map(StoreError::Superblock),
        Content::UnusableStore(SuperblockError::Damaged) => None,
        Content::UnusableStore(error) => Some(StoreError::Superblock(*error)),
        Content::UnusableLower(error @ LabelError::UnknownVersion(_)) => {
            Some(StoreError::Lower { name: store.path.display().to_string(), error: *error })
        }
        _ => None,
    }
}

/// Returns the devices of a lane, each with the number of bytes that the store uses on it.
fn used_parts<'g, 'a>(
    given: &'g [ConfiguredDevice<'a>],
    lane: &LanePaths<'_>,
) -> Vec<(&'g ConfiguredDevice<'a>, u64)> {
    let Some(fast) = find(given, lane.first) else { return Vec::new() };
    let Content::Store(superblock) = &fast.content else { return Vec::new() };
    let all = superblock.geometry.total_bytes();
    let border = superblock.fast_part().map_or(all, |part| part.total_bytes());
    let mut parts = vec![(fast, border)];
    if let Some(lower) = lane.lower.and_then(|lower| find(given, lower)).filter(|_| border < all) {
        parts.push((lower, all - border + LABEL_AREA));
    }
    parts
}

fn find<'g, 'a>(
    given: &'g [ConfiguredDevice<'a>],
    store: &StorePath,
) -> Option<&'g ConfiguredDevice<'a>> {
    given.iter().find(|given| given.store == store)
}

/// Returns an error text if a lower device is given as the lane's fast device. Other mistakes with
/// the fast device are detected later, when the device is opened.
fn wrong_fast(given: &[ConfiguredDevice<'_>], lane: &LanePaths<'_>) -> Option<String> {
    let fast = find(given, lane.first)?;
    matches!(fast.content, Content::Lower(_) | Content::UnusableLower(_)).then(|| {
        format!(
            "--store {} is the lower device of {} and holds a part of its data: the fast device of that \
             lane goes before it",
            fast.name(),
            fast.lane()
        )
    })
}

/// Returns an error text if the lane's lower device is wrong or missing. [`wrong_fast`] must have
/// checked the lane's fast device before.
fn wrong_lower(given: &[ConfiguredDevice<'_>], lane: &LanePaths<'_>) -> Option<String> {
    let fast = find(given, lane.first)?;
    let Some(lower) = lane.lower.and_then(|lower| find(given, lower)) else {
        return fast.has_lower().then(|| {
            format!(
                "--store {} is the fast device of {}, and the lower device with the other part of its \
                 data is not given",
                fast.name(),
                fast.lane()
            )
        });
    };
    match &lower.content {
        Content::Store(_) | Content::UnusableStore(_) => Some(format!(
            "--store {} is a device of {}, and cannot be the lower device of another one",
            lower.name(),
            lower.lane()
        )),
        // The label at the beginning of a lower device has the store id of its lane's superblock.
        // The superblock is durable before the device gets the label, so no crash leaves a label
        // without its superblock. A label with another store id therefore belongs to another lane.
        Content::Lower(label) if fast.lane_id() != Some(label.store_id) => Some(format!(
            "--store {} is the lower device of {}, and {} is not the fast device of that lane",
            lower.name(),
            lower.lane(),
            fast.name()
        )),
        _ => None,
    }
}

/// Returns the `--store` flags that give every device its right role. Placeholders in capitals
/// stand for devices that were not given.
fn command_line(given: &[ConfiguredDevice<'_>]) -> String {
    let is_lower =
        |given: &&ConfiguredDevice<'_>| given.content.is_lower() && !given.content.is_store();
    let tiers = given.iter().any(|given| is_lower(&given) || given.has_lower());
    let mut text = String::new();
    let mut flag = |store: Option<&StorePath>, placeholder: &str, tier: &str| {
        let mut store = match store {
            Some(store) => store.clone(),
            None => StorePath { path: placeholder.into(), size: None, tier: None },
        };
        store.tier = tiers.then(|| tier.to_owned());
        let space = if text.is_empty() { "" } else { " " };
        // Writing to a string cannot fail.
        let _ = write!(text, "{space}--store {store}");
    };
    let mut used = Vec::new();
    for fast in given.iter().filter(|given| matches!(given.content, Content::Store(_))) {
        flag(Some(fast.store), "", "fast");
        let lower = given.iter().filter(is_lower).find(|lower| lower.lane_id() == fast.lane_id());
        if tiers {
            used.extend(lower.map(ConfiguredDevice::name));
            flag(lower.map(|lower| lower.store), "ITS-LOWER-DEVICE", "big");
        }
    }
    for lower in given.iter().filter(is_lower).filter(|lower| !used.contains(&lower.name())) {
        flag(None, "ITS-FAST-DEVICE", "fast");
        flag(Some(lower.store), "", "big");
    }
    text
}
