//! mpatrol's event trace.
