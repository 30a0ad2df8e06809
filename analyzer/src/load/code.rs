//! Names that the tape has for code that no file describes, given to the sites that lie in it.

use crate::stacks::{Named, Site, Stacks};
use heaptape_formats::perf_map::Unnamed;
use heaptape_formats::tape::{CodeRange, SITE_SIGNAL};
use rustc_hash::FxHashMap;

/// The instruction that a site stands at: of the call, not of what follows it.
fn instruction(site: &Site) -> u64 {
    site.address.wrapping_sub(u64::from(site.flags & SITE_SIGNAL == 0))
}

/// Names the sites that lie in no file's code. Of ranges that overlap the later holds.
pub fn name(stacks: &mut Stacks, ranges: Vec<CodeRange>) {
    if ranges.is_empty() {
        return;
    }
    let is_file = |site: &Site| {
        let module = (site.module as usize).checked_sub(1).and_then(|place| stacks.modules.get(place));
        module.is_some_and(|module| module.path.contains(&b'/'))
    };
    let unplaced = |number: &u32| {
        let site = stacks.site(*number);
        site.named == 0 && site.address != 0 && !is_file(&site)
    };
    let sites: Vec<u32> = (1..=stacks.len() as u32).filter(unplaced).collect();
    let mut unnamed: Unnamed = sites.iter().map(|number| instruction(&stacks.site(*number))).collect();
    let (mut places, mut known): (FxHashMap<u64, u32>, FxHashMap<Named, u32>) = Default::default();
    for range in ranges.into_iter().rev() {
        let addresses = unnamed.take(range.start, range.length);
        if addresses.is_empty() {
            continue;
        }
        let place = *known.entry(named(&range.name.0)).or_insert_with_key(|named| {
            stacks.named.push(named.clone());
            stacks.named.len() as u32
        });
        places.extend(addresses.into_iter().map(|address| (address, place)));
    }
    for number in sites {
        let site = stacks.site(number);
        if let Some(place) = places.get(&instruction(&site)) {
            stacks.set(number, Site { named: *place, ..site }, number as usize);
        }
    }
}

/// What a perf map's name says. V8 and CPython tell file and line in it; V8 also how far it has compiled the function, which changes while
/// the program runs and would make two functions of one.
fn named(name: &[u8]) -> Named {
    v8(name).or_else(|| python(name)).unwrap_or_else(|| Named { function: name.to_vec(), ..Named::default() })
}

/// `JS:*function file:line:column`; the function may have no name, and other words than `JS` stand for pieces of source too.
fn v8(name: &[u8]) -> Option<Named> {
    const KINDS: [&[u8]; 6] = [b"JS:", b"LazyCompile:", b"Function:", b"Script:", b"Eval:", b"Module:"];
    let rest = KINDS.iter().find_map(|kind| name.strip_prefix(*kind))?;
    let rest = rest.strip_prefix(b"*").or(rest.strip_prefix(b"~")).or(rest.strip_prefix(b"^")).unwrap_or(rest);
    let rest = rest.strip_prefix(b"'").unwrap_or(rest);
    let (function, place) = rest.split_at(rest.iter().position(|byte| *byte == b' ')?);
    let mut parts = place.trim_ascii().rsplitn(3, |byte| *byte == b':');
    let (column, line, file) = (number(parts.next()?)?, number(parts.next()?)?, parts.next()?);
    let function = if function.is_empty() { b"(anonymous)" } else { function };
    (column > 0).then(|| Named { function: function.to_vec(), file: file.to_vec(), line })
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// `py::function:file`.
fn python(name: &[u8]) -> Option<Named> {
    let rest = name.strip_prefix(b"py::")?;
    let (function, file) = rest.split_at(rest.iter().position(|byte| *byte == b':')?);
    Some(Named { function: function.to_vec(), file: file[1..].to_vec(), line: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::Module;

    fn text(named: &Named) -> String {
        let part = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        format!("{} {} {}", part(&named.function), part(&named.file), named.line)
    }

    #[test]
    fn names_of_run_times_are_taken_apart() {
        for (name, wanted) in [
            ("JS:*outer /srv/my app.js:2:25", "outer /srv/my app.js 2"),
            ("JS:^ node:internal/main:1:1", "(anonymous) node:internal/main 1"),
            ("LazyCompile:~Module._load node:internal/modules:801:24", "Module._load node:internal/modules 801"),
            ("Eval:~ /srv/t.js:1:1", "(anonymous) /srv/t.js 1"),
            ("JS:*odd", "JS:*odd  0"),
            ("JS:*odd file:x:1", "JS:*odd file:x:1  0"),
            ("Builtin:HandleApiCall", "Builtin:HandleApiCall  0"),
            ("py::Shop.load:/srv/shop.py", "Shop.load /srv/shop.py 0"),
            ("py::odd", "py::odd  0"),
            ("int java.lang.String.hashCode()", "int java.lang.String.hashCode()  0"),
            ("", "  0"),
        ] {
            assert_eq!(text(&named(name.as_bytes())), wanted);
        }
    }

    #[test]
    fn only_sites_without_a_file_are_named_and_later_ranges_hold() {
        let mut stacks = Stacks::default();
        for path in ["/bin/x", "linux-vdso.so.1"] {
            stacks.modules.push(Module { path: path.into(), ..Module::default() });
        }
        for (module, address, flags) in
            [(0, 0x1010, 0), (1, 0x1010, 0), (2, 0x1010, 0), (0, 0x1020, 0), (0, 0x1020, SITE_SIGNAL), (0, 0, 0)]
        {
            stacks.push(Site { module, address, flags, ..Site::default() });
        }
        let range = |start, length, name: &str| CodeRange { start, length, name: name.into() };
        name(&mut stacks, vec![range(0x1000, 0x20, "old"), range(0, 1, "null"), range(0x1000, 0x10, "young")]);
        let names: Vec<String> = (1..=6)
            .map(|number| match stacks.site(number).named {
                0 => String::new(),
                place => text(&stacks.named[place as usize - 1]),
            })
            .collect();
        // The call that returns to 0x1010 ends before it, and so in the young code; the one that returns to 0x1020 in the old.
        assert_eq!(names, ["young  0", "", "young  0", "old  0", "", ""]);
    }
}
