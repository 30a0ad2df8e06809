//! THE list of subcommands. A new one is a file in `words/` with `Args` (its option table, documented for `--help`) and
//! `run`, and a line here; help, completions and man pages follow from the list.

use crate::Outcome;

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
    /// Print the library's path, for preloading by hand
    library Library,
    /// View gmon.out files as GNU gprof prints them
    gprof Gprof,
}
