//! The properties of a request that do not depend on its keys. Each dialect assigns the properties
//! in one exhaustive `match`, so a new kind of request does not compile without properties.

use super::meta;
use larder_protocol::StoreMode;
use larder_protocol::meta::Meta;

/// The properties of a request. By default, all flags are false.
#[derive(Clone, Copy, Default)]
pub(crate) struct Properties<'r> {
    /// True if the client wants no reply, not even an error.
    pub(crate) noreply: bool,
    /// True if the request carries a value to store.
    pub(crate) stores: bool,
    /// True if the request most probably takes the lock of its key's stripe in the index, so that
    /// the lock is worth prefetching.
    pub(crate) locks: bool,
    /// True if the request may take long or closes the connection. A batch ends with such a
    /// request. The connection parses later input, if it is still open, in the worker's next turn.
    pub(crate) ends_turn: bool,
    /// The effect of the request on its items.
    pub(super) effect: Effect<'r>,
}

/// The effect of a request on its items.
#[derive(Clone, Copy, Default)]
pub(super) enum Effect<'r> {
    /// The request only reads.
    Reads,
    /// The request sets its key unconditionally.
    Overwrites,
    /// None of the other variants applies.
    #[default]
    Other,
    /// The effect depends on the flags of a meta command. The flags are parsed only when needed.
    Flags(&'r Meta<'r>),
}

impl Properties<'_> {
    /// The properties of a request that changes an item.
    pub(super) const CHANGES: Self = Properties {
        noreply: false,
        stores: false,
        locks: true,
        ends_turn: false,
        effect: Effect::Other,
    };

    /// Returns the properties of a storage command.
    #[inline(always)]
    pub(super) fn of_store(mode: StoreMode, compare: Option<u64>) -> Self {
        let effect = match mode {
            StoreMode::Set if compare.is_none() => Effect::Overwrites,
            StoreMode::Set
            | StoreMode::Add
            | StoreMode::Replace
            | StoreMode::Append
            | StoreMode::Prepend => Effect::Other,
        };
        Properties { stores: true, effect, ..Self::CHANGES }
    }

    /// Returns true if the request only reads. If a commit that its reply waits for fails, the
    /// connection executes such a request again.
    pub(crate) fn only_reads(&self) -> bool {
        match self.effect {
            Effect::Reads => true,
            Effect::Flags(command) => meta::only_reads(command),
            Effect::Overwrites | Effect::Other => false,
        }
    }

    /// Returns true if the request sets its key unconditionally. Does not check whether the flags
    /// of a meta command are valid.
    #[inline]
    pub(crate) fn overwrites(&self) -> bool {
        match self.effect {
            Effect::Overwrites => true,
            Effect::Flags(command) => meta::overwrites(command),
            Effect::Reads | Effect::Other => false,
        }
    }
}
