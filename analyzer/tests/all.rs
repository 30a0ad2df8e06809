//! Tests of the crate as others use it, a module for each subject.

mod law;
mod made;
mod misread;

mod accounting;
mod by_name;
mod cpp_names;
mod damage;
mod debug_forms;
mod export_docs;
mod export_html;
mod export_recording;
mod filters;
mod follow;
mod imports;
mod late_starts;
mod leak_shapes;
mod models;
mod mpatrol_mptrace;
mod mpatrol_reports;
mod reports;
mod symbols;
mod tape_golden;
