//! What the addresses of a mapped file are above those that it was linked with.

use crate::stacks::{FilePart, Module};
use crate::symbols::below;
use heaptape_formats::regular;
use object::Endianness;
use object::elf::{ET_EXEC, FileHeader64, PF_X, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Number of bytes with the headers of a file. Its program headers follow the first one at once.
const HEADERS: u64 = 1 << 16;

/// Returns the run-time address minus the link-time address in a file whose code is mapped at
/// `start`.
pub(crate) fn link_bias(path: &str, start: u64, mapped: FilePart) -> u64 {
    // Most linkers give the segments of a shared object the addresses of their offsets.
    let usual = || match mapped {
        FilePart::Whole => start,
        FilePart::From(offset) => start.wrapping_sub(offset),
    };
    from_headers(Path::new(path), start, mapped).unwrap_or_else(usual)
}

/// Corrects what depends on the files of modules, where these are in another folder than `/`.
pub(crate) fn relink(modules: &mut [Module], sysroot: &Path) {
    for module in modules {
        let path = below(sysroot, Path::new(OsStr::from_bytes(&module.path)));
        let found = module.mapped.and_then(|mapped| from_headers(&path, module.start, mapped));
        module.bias = found.unwrap_or(module.bias);
    }
}

fn from_headers(path: &Path, start: u64, mapped: FilePart) -> Option<u64> {
    if !path.has_root() {
        return None;
    }
    let mut bytes = Vec::new();
    regular::open(path).ok()?.take(HEADERS).read_to_end(&mut bytes).ok()?;
    let header = FileHeader64::<Endianness>::parse(&bytes[..]).ok()?;
    let endian = header.endian().ok()?;
    if header.e_type(endian) == ET_EXEC {
        return Some(0);
    }
    let mut loads = header.program_headers(endian, &bytes[..]).ok()?.iter().filter(|one| one.p_type(endian) == PT_LOAD);
    let FilePart::From(offset) = mapped else { return Some(start.wrapping_sub(loads.next()?.p_vaddr(endian))) };
    // A mapping begins at a page boundary at or before its segment. Linkers other than GNU's put
    // several segments into one page of the file.
    let mut code = loads.filter(|one| {
        let (from, size) = (one.p_offset(endian), one.p_filesz(endian));
        one.p_flags(endian).contains(PF_X) && offset >= (from & !0xfff) && offset < from.saturating_add(size)
    });
    let load = code.next()?;
    Some(start.wrapping_sub(load.p_vaddr(endian).wrapping_sub(load.p_offset(endian)).wrapping_add(offset)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_code_is_where_its_file_says() {
        let exe = std::env::current_exe().expect("the test");
        let maps = std::fs::read_to_string("/proc/self/maps").expect("the mappings");
        let own = maps.lines().find(|line| line.contains(" r-xp ") && line.ends_with(&*exe.to_string_lossy()));
        let words: Vec<&str> = own.expect("its code").split_whitespace().collect();
        let number = |text: &str| u64::from_str_radix(text, 16).expect("a number");
        let start = number(words[0].split('-').next().expect("a range"));
        let bias = link_bias(&exe.to_string_lossy(), start, FilePart::From(number(words[2])));
        assert_eq!(bias & 0xfff, 0);
        let bytes = std::fs::read(&exe).expect("its file");
        let file = object::File::parse(&*bytes).expect("an object");
        let here = own_code_is_where_its_file_says as fn() as usize as u64;
        let known = object::Object::symbols(&file)
            .any(|symbol| object::ObjectSymbol::address(&symbol) == here.wrapping_sub(bias));
        assert!(known, "the address of a function is that of a symbol");
        assert_eq!(link_bias("/nonexistent", 0x5000, FilePart::From(0x1000)), 0x4000);
        assert_eq!(link_bias("/nonexistent", 0x5000, FilePart::Whole), 0x5000);
    }
}
