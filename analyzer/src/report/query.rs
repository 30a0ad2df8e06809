//! A question to recordings, in the three parts that the steps of a report need one by one: what it
//! is about, how call sites are grouped, and how the answer is shown.

use super::Error;
use super::scope::Scope;
use super::site_groups::Grouping;
use super::view::View;
use crate::load::{self, Recording};
use std::path::PathBuf;

/// What a report is asked for.
#[derive(Clone, Debug, Default)]
pub struct Query {
    pub scope: Scope,
    pub grouping: Grouping,
    pub view: View,
}

impl Query {
    /// A question about everything in one recording or file.
    pub fn of(path: impl Into<PathBuf>, view: View) -> Self {
        let scope = Scope { paths: vec![path.into()], ..Scope::default() };
        Query { scope, view, ..Query::default() }
    }

    /// Opens the recordings and files in scope. Modules of other tools' files are placed by the files
    /// of the folder that the user names.
    ///
    /// # Errors
    /// Returns an error when one of the paths cannot be read.
    pub fn open(&self) -> Result<Vec<Recording>, Error> {
        let mut recordings = self.scope.open()?;
        load::place_modules(&mut recordings, self.view.origin.sysroot.as_deref());
        Ok(recordings)
    }
}
