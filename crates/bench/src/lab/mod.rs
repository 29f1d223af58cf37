//! `larder bench all`: the experiments of four articles, against Larder and every peer that is
//! there.

pub(crate) mod target;
