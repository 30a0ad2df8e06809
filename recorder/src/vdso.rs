//! Names of the code that the kernel maps into every program.

use crate::code::Named;
use formats::perf_map::UnnamedAddresses;
use formats::tape::CodeRange;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

/// The functions of the vDSO: link-time address, bytes, name. The kernel maps the same one into
/// every 64-bit program.
fn functions() -> &'static [(u64, u64, Vec<u8>)] {
    static FUNCTIONS: OnceLock<Vec<(u64, u64, Vec<u8>)>> = OnceLock::new();
    FUNCTIONS.get_or_init(|| {
        let Some(bytes) = own_image() else { return Vec::new() };
        let Ok(file) = ElfFile64::<Endianness, _>::parse(&*bytes) else { return Vec::new() };
        let functions = file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.size() > 0);
        let row = functions.map(|symbol| Some((symbol.address(), symbol.size(), symbol.name_bytes().ok()?.to_vec())));
        row.flatten().collect()
    })
}

fn own_image() -> Option<Vec<u8>> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let (range, _) = maps.lines().find(|line| line.ends_with("[vdso]"))?.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    let mut bytes = vec![0; usize::try_from(end.checked_sub(start)?).ok()?];
    File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, start).ok()?;
    Some(bytes)
}

/// Names addresses in the vDSO that is mapped with this bias.
pub fn name(bias: u64, unnamed: &mut UnnamedAddresses, named: &mut Vec<Named>) {
    for (address, length, name) in functions() {
        let start = address.wrapping_add(bias);
        let addresses = unnamed.take(start, *length);
        if !addresses.is_empty() {
            named.push((CodeRange { start, length: *length, name: name.into() }, addresses));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vdso_has_names() {
        let functions = functions();
        let time = functions.iter().find(|(_, _, name)| name == b"__vdso_clock_gettime");
        let Some((address, _, _)) = time else { panic!("{} functions", functions.len()) };
        let (mut unnamed, mut named) = ([address + 0x7000_0001].into_iter().collect(), Vec::new());
        name(0x7000_0000, &mut unnamed, &mut named);
        assert_eq!(named.len(), 1);
        assert!(named[0].0.name.lossy().contains("clock_gettime"), "{named:?}");
    }
}
