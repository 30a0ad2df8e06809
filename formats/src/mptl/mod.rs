//! mpatrol's profile.
