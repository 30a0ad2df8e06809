//! What is live and who allocated it: tables, sites, profiles, history.

pub(crate) mod annotations;
pub(crate) mod history;
pub(crate) mod index;
pub(crate) mod journal;
pub(crate) mod live;
pub mod profile;
pub mod profile_delta;
pub(crate) mod stacks;
