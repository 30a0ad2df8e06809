//! Which of blocks and mappings a report has.

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
