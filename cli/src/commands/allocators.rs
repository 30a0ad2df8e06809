//! Options of the commands that record, about allocators inside programs: `--allocator`, an
//! allocator of the program's own, and `--debuginfod`, symbols from a server.

use anyhow::Context;
use heaptape_analyzer::symbols::{fetch_debug_information, hexadecimal};
use heaptape_analyzer::text;
use heaptape_recorder::inject::patch::{self, Description, OwnAllocator};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Returns whether this is the path of a description: it has a dot or a slash, which no prefix has.
fn is_path(text: &str) -> bool {
    text.contains(['.', '/'])
}

/// Parses the prefix of an allocator's functions, or the path of the file that describes them.
pub(super) fn name(text: &str) -> Result<String, String> {
    let is_prefix = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    (is_prefix || is_path(text))
        .then(|| text.to_owned())
        .ok_or_else(|| "must be the start of a function's name (my_), or the path of a file (./my.alloc)".to_owned())
}

/// Reads the descriptions among these allocators.
///
/// # Errors
/// A file cannot be read, or is no description.
pub(super) fn read(names: &[String]) -> anyhow::Result<Vec<OwnAllocator>> {
    let allocator = |name: &String| match is_path(name) {
        false => Ok(OwnAllocator::Prefix(name.clone())),
        true => Description::read(Path::new(name))
            .map(OwnAllocator::Described)
            .with_context(|| format!("invalid description of an allocator '{name}'")),
    };
    names.iter().map(allocator).collect()
}

/// Fetches the debug information of a program that has no symbols itself. The recorder finds it in
/// the cache of `debuginfod-find`. Says why if there is none.
pub(crate) fn fetch_symbols(name: &str, program: Option<File>) {
    let Some(build_id) = program.and_then(|program| patch::build_id_without_symbols(&program)) else { return };
    if let Err(why) = fetch_debug_information(&hexadecimal(&build_id), &AtomicBool::new(false)) {
        eprintln!("heaptape: {} has no symbols to find allocators inside it: {why}", text::clean(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_descriptions_have_a_dot_or_a_slash() {
        assert_eq!(name("my_"), Ok("my_".into()));
        assert_eq!(name("./my"), Ok("./my".into()));
        assert!(name("").is_err() && name("my-").is_err());
        let read = |name: &str| read(&[name.to_owned()]).map_err(|error| format!("{error:#}"));
        assert!(matches!(read("my_").as_deref(), Ok([OwnAllocator::Prefix(prefix)]) if prefix == "my_"));
        let error = read("./is-not-there").err().unwrap_or_default();
        assert!(error.contains("'./is-not-there'") && error.contains("No such file"), "{error}");
    }
}
