//! What the kernel and the files say of a traced process: `/proc`, modules, names.

pub mod cgroup;
pub mod elf_text;
pub mod jit_names;
pub mod kept_file;
pub mod maps;
pub mod module_files;
pub mod modules;
pub mod name_saver;
pub mod proc;
pub mod sanitizer;
pub mod untraced;
pub mod vdso;
