//! Function names of the vDSO, the code that the kernel maps into every program.

use crate::target::jit_names::NamedRange;
use crate::target::maps;
use formats::perf_map::UnnamedAddresses;
use formats::tape::CodeRange;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

/// A function of the vDSO.
struct Function {
    /// Link-time address of its code.
    address: u64,
    /// Length of its code in bytes.
    length: u64,
    name: Vec<u8>,
}

/// Returns the functions of the vDSO. The kernel maps the same one into every 64-bit program.
fn functions() -> &'static [Function] {
    static FUNCTIONS: OnceLock<Vec<Function>> = OnceLock::new();
    FUNCTIONS.get_or_init(|| {
        let Some(bytes) = mapped_vdso() else { return Vec::new() };
        let Ok(file) = ElfFile64::<Endianness, _>::parse(&*bytes) else { return Vec::new() };
        let symbols = file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.size() > 0);
        let function = |symbol: object::read::elf::ElfSymbol64<'_, '_, Endianness, _>| {
            Some(Function {
                address: symbol.address(),
                length: symbol.size(),
                name: symbol.name_bytes().ok()?.to_vec(),
            })
        };
        symbols.filter_map(function).collect()
    })
}

/// Returns the bytes of the vDSO that is mapped into this process.
fn mapped_vdso() -> Option<Vec<u8>> {
    let text = maps::read(std::process::id());
    let text = String::from_utf8_lossy(&text);
    let vdso = text.lines().filter_map(maps::parse).find(|mapping| mapping.name == "[vdso]")?;
    let mut bytes = vec![0; usize::try_from(vdso.end - vdso.start).ok()?];
    File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, vdso.start).ok()?;
    Some(bytes)
}

/// Names addresses in the vDSO, which is mapped with this bias.
pub(crate) fn name(bias: u64, unnamed: &mut UnnamedAddresses, named: &mut Vec<NamedRange>) {
    for Function { address, length, name } in functions() {
        let start = address.wrapping_add(bias);
        let addresses = unnamed.take(start, *length);
        if !addresses.is_empty() {
            let range = CodeRange { start, length: *length, name: name.into() };
            named.push(NamedRange { range, instructions: addresses });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vdso_has_names() {
        let functions = functions();
        let time = functions.iter().find(|function| function.name.ends_with(b"_clock_gettime"));
        let Some(Function { address, .. }) = time else { panic!("{} functions", functions.len()) };
        let (mut unnamed, mut named) = ([address + 0x7000_0001].into_iter().collect(), Vec::new());
        name(0x7000_0000, &mut unnamed, &mut named);
        assert_eq!(named.len(), 1);
        assert!(named[0].range.name.lossy().contains("clock_gettime"), "{named:?}");
    }
}
