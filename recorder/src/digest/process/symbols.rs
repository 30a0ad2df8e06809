//! The lookup of function names for the recording of a process.

use super::ProcessRecording;
use crate::session::options::Mode;
use crate::target::name_saver::Job;
use formats::tape::{Module, Record as TapeRecord};
use std::path::PathBuf;

impl ProcessRecording {
    /// Looks at the files of modules that were announced.
    pub(super) fn open_modules(&mut self) {
        let new = self.stacks.announced().get(self.opened_modules..).unwrap_or_default();
        let modules = new.iter().filter_map(|(_, record)| match record {
            TapeRecord::Module(module) => Some(module),
            _ => None,
        });
        let modules: Vec<&Module> = modules.collect();
        for module in &modules {
            if let Some(names) = &self.session.options.names {
                names.see(module, &self.session.files);
            }
        }
        if !modules.is_empty() {
            self.session.hooks.opened(self.session.owner(), &modules);
        }
        self.opened_modules = self.stacks.announced().len();
    }

    /// Returns the job that looks up names for these folders; `None` without a helper, or when no
    /// file has names.
    pub(super) fn symbols(&mut self, folders: Vec<PathBuf>) -> Option<Box<Job>> {
        let files = &self.session.files;
        if files.saver().is_none() || folders.is_empty() || self.session.options.mode == Mode::Off {
            return None;
        }
        let mut job = Job { folders, reader: self.session.options.reader, ..Job::default() };
        for (module, addresses) in self.stacks.instructions() {
            let files = [files.file(module), files.debug(module)];
            job.ask(module, self.session.process.start_unix_ns, files, addresses);
        }
        (!job.queries.is_empty()).then(|| Box::new(job))
    }
}
