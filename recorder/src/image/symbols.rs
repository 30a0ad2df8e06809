//! The names of its modules that an image keeps.

use super::Image;
use crate::options::Mode;
use crate::symbols::Job;
use formats::tape::{Record as TapeRecord, SymbolQuery};
use std::path::PathBuf;

impl Image {
    /// Opens the files of modules that were announced: their process may soon be gone.
    pub(super) fn open_modules(&mut self) {
        for (_, record) in self.stacks.announced().get(self.opened..).unwrap_or_default() {
            if let TapeRecord::Module(module) = record {
                self.session.files.announced(module);
            }
        }
        self.opened = self.stacks.announced().len();
    }

    /// What is to be looked up for these folders; nothing where nobody does that, or no file names
    /// anything.
    pub(super) fn symbols(&mut self, folders: Vec<PathBuf>) -> Option<Box<Job>> {
        let files = &self.session.files;
        if files.saver().is_none() || folders.is_empty() || self.session.options.mode == Mode::Off {
            return None;
        }
        let mut job = Job { folders, reader: self.session.options.reader, ..Job::default() };
        for (module, addresses) in self.stacks.instructions() {
            let (path, build_id) = (module.path.clone(), module.build_id.clone());
            let (file, debug_file) = (job.add(files.file(module)), job.add(files.debug(module)));
            job.queries.push(SymbolQuery { path, build_id, file, debug_file, addresses });
        }
        (!job.queries.is_empty()).then(|| Box::new(job))
    }
}
