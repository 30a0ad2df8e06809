//! Which of blocks and mappings a report has.

use crate::load::Process;
use crate::text::{Screen, clean};
use std::io;

/// Which memory a report is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MappingFilter {
    /// Blocks, and mappings in a section of their own.
    #[default]
    All,
    /// The report has mappings only.
    Only,
    /// The report has blocks only.
    No,
}

impl MappingFilter {
    /// Returns whether the report has mappings.
    pub const fn has_mappings(self) -> bool {
        !matches!(self, MappingFilter::No)
    }

    /// Returns whether the report has blocks.
    pub const fn has_blocks(self) -> bool {
        !matches!(self, MappingFilter::Only)
    }
}

/// Prints of which processes no call that maps memory is recorded, and why.
///
/// # Errors
/// When the screen cannot be written.
pub fn print_unseen(screen: &mut Screen, processes: &[&Process]) -> io::Result<()> {
    for process in processes.iter().filter(|process| !process.about.unseen_mappings.is_empty()) {
        let (name, pid, why) = (process.name(), process.about.pid, clean(&process.about.unseen_mappings));
        screen.line(&format!("what {name} (pid {pid}) maps itself is not recorded: {why}"))?;
    }
    Ok(())
}
