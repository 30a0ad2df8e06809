//! THE list of subcommands. A new one is a file in `words/` with `Args` (its option table, documented for `--help`) and
//! `run`, and a line here; help, completions and man pages follow from the list.

use crate::Outcome;

pub use dcpiprof::spelled;

macro_rules! words {
    ($($(#[$meta:meta])* $name:ident $variant:ident,)*) => {
        $(mod $name;)*

        /// A subcommand and its options.
        #[derive(clap::Subcommand)]
        pub enum Word { $($(#[$meta])* $variant($name::Args)),* }

        /// Runs a subcommand.
        pub fn run(word: Word) -> anyhow::Result<Outcome> {
            match word { $(Word::$variant(args) => $name::run(args)),* }
        }
    };
}

words! {
    /// Run a program and record what it does with its heap
    record Record,
    /// DCPI's profile by procedure or image
    dcpiprof Dcpiprof,
    /// DCPI's listing of a procedure with its samples
    dcpilist Dcpilist,
    /// DCPI profiles as plain text
    dcpicat Dcpicat,
    /// DCPI's comparison of two sets of profiles
    dcpidiff Dcpidiff,
    /// Print the library's path, for preloading by hand
    library Library,
}
