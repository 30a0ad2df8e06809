//! The option `--mappings` of several reports.

use clap::ValueEnum;
use heaptape_analyzer::report::MappingFilter;

/// Which memory a report is about.
#[derive(Clone, Copy, ValueEnum)]
enum Mappings {
    /// Only the memory that the program mapped itself
    Only,
    /// Only blocks, and no mappings
    No,
}

/// Options about the memory that a program mapped itself.
#[derive(clap::Args)]
pub(super) struct MappingOptions {
    /// Show only what the program mapped itself by mmap, brk or shmat, or leave that out
    #[arg(long, value_name = "only|no", value_enum, hide_possible_values = true)]
    mappings: Option<Mappings>,
}

impl MappingOptions {
    /// Returns the option in the form that the analyzer takes.
    pub(super) fn filter(&self) -> MappingFilter {
        match self.mappings {
            None => MappingFilter::All,
            Some(Mappings::Only) => MappingFilter::Only,
            Some(Mappings::No) => MappingFilter::No,
        }
    }
}
