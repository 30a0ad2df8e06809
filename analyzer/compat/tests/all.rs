//! Tests of the views, a module for each family.

#[path = "../../tests/made/mod.rs"]
mod made;

mod dcpi_views;
mod export_gprof;
mod export_views;
mod gprof_golden;
mod gprof_live;
mod gprof_pe;
mod gprof_programs;
mod gprof_sum;
mod mpatrol_edge;
mod mpatrol_hostile;
mod mpatrol_mleak;
mod mpatrol_mprof;
