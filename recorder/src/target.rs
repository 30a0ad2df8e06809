//! What we can learn about a program from outside: `/proc`, its files, its modules, and the names of
//! its functions.

pub mod cgroup;
pub mod elf_text;
pub(crate) mod jit_names;
pub(crate) mod kept_file;
pub mod maps;
pub(crate) mod module_files;
pub(crate) mod modules;
pub mod name_saver;
pub mod proc;
pub(crate) mod sanitizer;
pub mod untraced;
pub(crate) mod vdso;
pub(crate) mod waiting;

pub use jit_names::{MAX_MAP_BYTES_SHARED, PerfMap};
pub use module_files::ModuleFiles;
