//! Assigns the tape's names of generated code to the sites in it.

use crate::stacks::{Named, Site, Stacks};
use crate::symbols::code_name;
use heaptape_formats::perf_map::UnnamedAddresses;
use heaptape_formats::tape::{CodeRange, instruction, is_virtual};
use rustc_hash::FxHashMap;

/// Names the sites that are not in the code of a file. If ranges overlap, the last one counts.
pub(super) fn assign(stacks: &mut Stacks, ranges: Vec<CodeRange>) {
    if ranges.is_empty() {
        return;
    }
    let is_file = |site: &Site| {
        let module = (site.module as usize).checked_sub(1).and_then(|index| stacks.modules.get(index));
        module.is_some_and(|module| !is_virtual(&module.path))
    };
    let address_of = |site: &Site| instruction(site.address, site.flags);
    let is_unnamed = |number: &u32| {
        let site = stacks.site(*number);
        site.named == 0 && site.address != 0 && !is_file(&site)
    };
    let sites: Vec<u32> = (1..=stacks.len() as u32).filter(is_unnamed).collect();
    let mut unnamed: UnnamedAddresses = sites.iter().map(|number| address_of(&stacks.site(*number))).collect();
    let mut named_by_address: FxHashMap<u64, u32> = FxHashMap::default();
    let mut known: FxHashMap<Named, u32> = FxHashMap::default();
    for range in ranges.into_iter().rev() {
        let addresses = unnamed.take(range.start, range.length);
        if addresses.is_empty() {
            continue;
        }
        let named = *known.entry(code_name(&range.name.0)).or_insert_with_key(|named| {
            stacks.named.push(named.clone());
            stacks.named.len() as u32
        });
        named_by_address.extend(addresses.into_iter().map(|address| (address, named)));
    }
    for number in sites {
        let site = stacks.site(number);
        if let Some(named) = named_by_address.get(&address_of(&site)) {
            stacks.set(number, Site { named: *named, ..site }, number as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::Module;
    use heaptape_formats::tape::SITE_SIGNAL;

    #[test]
    fn only_sites_without_a_file_are_named_and_last_range_counts() {
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
        assign(&mut stacks, vec![range(0x1000, 0x20, "old"), range(0, 1, "null"), range(0x1000, 0x10, "young")]);
        let names: Vec<String> = (1..=6)
            .map(|number| match stacks.site(number).named {
                0 => String::new(),
                named => String::from_utf8_lossy(&stacks.named[named as usize - 1].function).into_owned(),
            })
            .collect();
        // The call that returns to 0x1010 ends before this address, so it is in the new code. The
        // one that returns to 0x1020 is in the old code.
        assert_eq!(names, ["young", "", "young", "old", "", ""]);
    }
}
