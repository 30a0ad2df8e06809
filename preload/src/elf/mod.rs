//! ELF objects that the loader has mapped, and program files: headers, build-ids, and bounded
//! reading of unwind tables.

mod build_id;
mod code;
mod head;
pub mod header;
pub mod maps;
mod object;
pub mod objects;
mod program;
mod program_headers;
pub mod search_tables;
pub mod tables;

pub use build_id::build_id;
pub use code::{bytes_before, is_code};
pub use head::head;
pub use object::{Object, bias_and_name};
