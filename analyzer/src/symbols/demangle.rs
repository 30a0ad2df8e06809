//! Demangling of C++ and Rust symbols, in bounded time and memory for any symbol.

use super::bounded_name::BoundedName;
use super::itanium::{self, Spelling};
use std::fmt::Write;

/// Maximum length of a symbol that is demangled.
const LONGEST_SYMBOL: usize = 4096;
/// Maximum length of a demangled name.
const LONGEST_NAME: usize = 16 * 1024;
/// Suffixes that compilers append to the names of split parts and clones of a function.
const CLONES: &[&str] = &[".cold", ".part", ".constprop", ".isra", ".lto_priv", ".localalias", ".llvm"];

/// Returns the name of a function. C++ names have no parameters and no return type, and Rust names
/// no hash.
pub fn demangle(symbol: &[u8]) -> String {
    let text = String::from_utf8_lossy(symbol);
    let symbol = whole_function(&text);
    if symbol.len() > LONGEST_SYMBOL {
        return symbol.chars().take(LONGEST_SYMBOL).collect();
    }
    rust(symbol).or_else(|| cpp(symbol)).unwrap_or_else(|| symbol.to_string())
}

/// Returns the symbol without suffixes of clones and split parts, and without a version.
fn whole_function(symbol: &str) -> &str {
    // `.part.0` is a suffix, `.partition` belongs to the name.
    let is_mark = |offset: usize, mark: &str| matches!(symbol.as_bytes().get(offset + mark.len()), None | Some(b'.'));
    let offset =
        |mark: &&str| symbol.match_indices(*mark).map(|(offset, _)| offset).find(|offset| is_mark(*offset, mark));
    let end = CLONES.iter().filter_map(offset).min().unwrap_or(symbol.len());
    let symbol = &symbol[..end];
    match symbol.find('@') {
        Some(version) if version > 0 => &symbol[..version],
        _ => symbol,
    }
}

/// Names of Rust. The older ones are those of C++ with a hash, which variables in namespaces of C++ do not
/// have.
fn of_rust(symbol: &str) -> Option<rustc_demangle::Demangle<'_>> {
    let has_hash = || {
        let (_, hash) = symbol.strip_prefix("_ZN")?.rsplit_once("17h")?;
        let (hash, _) = hash.split_once('E')?;
        (hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(())
    };
    (!symbol.starts_with("_ZN") || has_hash().is_some()).then(|| rustc_demangle::try_demangle(symbol).ok())?
}

fn rust(symbol: &str) -> Option<String> {
    let name = of_rust(symbol)?;
    let mut out = BoundedName::new(LONGEST_NAME);
    write!(out, "{name:#}").ok()?;
    Some(out.into_text())
}

fn cpp(symbol: &str) -> Option<String> {
    itanium::demangle(symbol, Spelling::Short, LONGEST_NAME)
}

/// Returns the demangled name with parameters and return type, or the symbol if it is not mangled.
pub(super) fn as_binutils(symbol: &str, spelling: Spelling) -> String {
    const LONGEST: usize = 1 << 16;
    if let Some(rust) = of_rust(symbol) {
        return format!("{rust:#}");
    }
    itanium::demangle(symbol, spelling, LONGEST).unwrap_or_else(|| symbol.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_demangled_without_parameters_and_hashes() {
        for (symbol, name) in [
            ("main", "main"),
            ("_ZN4shop5order3addEi", "shop::order::add"),
            ("_ZN4shop5order3addEi.part.0.cold", "shop::order::add"),
            ("_ZNSt6vectorIiSaIiEE9push_backERKi", "std::vector<int, std::allocator<int> >::push_back"),
            ("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", "core::fmt::Write::write_fmt"),
            ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
            ("_ZN4shop5cacheE", "shop::cache"),
            ("_ZN12_GLOBAL__N_15cacheE", "(anonymous namespace)::cache"),
            ("parse.constprop.0", "parse"),
            ("Shop.partition", "Shop.partition"),
            ("shop.partial.cold", "shop.partial"),
            ("memcpy@@GLIBC_2.14", "memcpy"),
            ("_Z", "_Z"),
        ] {
            assert_eq!(demangle(symbol.as_bytes()), name);
        }
    }

    #[test]
    fn hostile_names_are_bounded() {
        let deep = format!("_Z{}i", "P".repeat(4000));
        let wide = format!("_Z1fI{}E", "S_".repeat(1500));
        let bomb = "_ZN1aIS_S_S_S_S_S_S_S_S_EIS0_S0_S0_S0_S0_S0_S0_EIS1_S1_S1_S1_S1_S1_S1_EIS2_S2_S2_S2_S2_S2_EE1bEv";
        let long = "x".repeat(1 << 20);
        for symbol in [deep.as_str(), &wide, bomb, &long, "_ZN\u{1b}[31mE", "_RNvNvNvNvNv"] {
            assert!(demangle(symbol.as_bytes()).len() <= LONGEST_NAME);
        }
    }
}
