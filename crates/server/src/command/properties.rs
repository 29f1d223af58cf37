//! What connections ask of a request, whatever its keys. Each type of requests answers in one exhaustive
//! table, so that the compiler asks for the properties of a new verb there.

use super::meta;
use larder_protocol::StoreMode;
use larder_protocol::meta::Meta;

/// The properties of a request. The default has none of them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Properties<'r> {
    /// The client wants no reply, errors included.
    pub(crate) noreply: bool,
    /// It carries a value to be stored.
    pub(crate) stores: bool,
    /// It most probably takes the lock of its key's stripe.
    pub(crate) locks: bool,
    /// What follows it waits for another turn: the request may take long, or the connection ends with it.
    pub(crate) ends_turn: bool,
    /// What it does to its items.
    pub(super) effect: Effect<'r>,
}

/// What a request does to its items.
#[derive(Clone, Copy, Default)]
pub(super) enum Effect<'r> {
    /// It only reads.
    Reads,
    /// It sets its key whatever there was before.
    Overwrites,
    /// Something else, or there are none.
    #[default]
    Other,
    /// What the flags of a meta command say. They are looked at only for an answer that needs them.
    Flags(&'r Meta<'r>),
}

impl Properties<'_> {
    /// A request that changes an item.
    pub(super) const CHANGES: Self = Properties {
        noreply: false,
        stores: false,
        locks: true,
        ends_turn: false,
        effect: Effect::Other,
    };

    /// A storage command.
    #[inline(always)]
    pub(super) fn of_store(mode: StoreMode, compare: Option<u64>) -> Self {
        let effect = match (mode, compare) {
            (StoreMode::Set, None) => Effect::Overwrites,
            _ => Effect::Other,
        };
        Properties { stores: true, effect, ..Self::CHANGES }
    }

    /// Whether the request only reads, so that it can be executed again.
    pub(crate) fn only_reads(&self) -> bool {
        match self.effect {
            Effect::Reads => true,
            Effect::Flags(command) => meta::only_reads(command),
            Effect::Overwrites | Effect::Other => false,
        }
    }

    /// Whether the request most probably sets its key whatever there was before.
    #[inline]
    pub(crate) fn overwrites(&self) -> bool {
        match self.effect {
            Effect::Overwrites => true,
            Effect::Flags(command) => meta::overwrites(command),
            Effect::Reads | Effect::Other => false,
        }
    }
}
