//! What is live and who allocated it: tables, sites, profiles, history.

pub mod annotations;
pub mod history;
pub mod index;
pub mod journal;
pub mod live;
pub mod profile;
pub mod profile_delta;
pub mod stacks;
