//! What the kernel and the files say of a traced process: `/proc`, modules, names.

pub mod cgroup;
pub mod elf_text;
pub mod jit_names;
pub(crate) mod kept_file;
pub mod maps;
pub mod module_files;
pub(crate) mod modules;
pub mod name_saver;
pub mod proc;
pub(crate) mod sanitizer;
pub mod untraced;
pub(crate) mod vdso;
pub mod waiting;
