//! ELF objects that the loader has mapped, and program files: headers, build-ids, and bounded
//! reading of unwind tables.

mod build_id;
mod code;
mod head;
pub(crate) mod header;
pub(crate) mod maps;
mod object;
pub(crate) mod objects;
mod program;
mod program_headers;
pub(crate) mod search_tables;
pub(crate) mod tables;

pub(crate) use build_id::build_id;
pub(crate) use code::{bytes_before, is_code};
pub(crate) use head::head;
pub(crate) use object::{Object, bias_and_name};
