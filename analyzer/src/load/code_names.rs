//! Names that the tape has for code that no file describes, given to the sites that lie in it.

use crate::stacks::{Named, Site, Stacks};
use crate::symbols::code_name;
use heaptape_formats::perf_map::UnnamedAddresses;
use heaptape_formats::tape::{CodeRange, instruction, is_virtual};
use rustc_hash::FxHashMap;

/// Names the sites that lie in no file's code. Of ranges that overlap the later holds.
pub fn assign(stacks: &mut Stacks, ranges: Vec<CodeRange>) {
    if ranges.is_empty() {
        return;
    }
    let is_file = |site: &Site| {
        let module = (site.module as usize).checked_sub(1).and_then(|place| stacks.modules.get(place));
        module.is_some_and(|module| !is_virtual(&module.path))
    };
    let place_of = |site: &Site| instruction(site.address, site.flags);
    let unplaced = |number: &u32| {
        let site = stacks.site(*number);
        site.named == 0 && site.address != 0 && !is_file(&site)
    };
    let sites: Vec<u32> = (1..=stacks.len() as u32).filter(unplaced).collect();
    let mut unnamed: UnnamedAddresses = sites.iter().map(|number| place_of(&stacks.site(*number))).collect();
    let (mut places, mut known): (FxHashMap<u64, u32>, FxHashMap<Named, u32>) = Default::default();
    for range in ranges.into_iter().rev() {
        let addresses = unnamed.take(range.start, range.length);
        if addresses.is_empty() {
            continue;
        }
        let place = *known.entry(code_name(&range.name.0)).or_insert_with_key(|named| {
            stacks.named.push(named.clone());
            stacks.named.len() as u32
        });
        places.extend(addresses.into_iter().map(|address| (address, place)));
    }
    for number in sites {
        let site = stacks.site(number);
        if let Some(place) = places.get(&place_of(&site)) {
            stacks.set(number, Site { named: *place, ..site }, number as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::Module;
    use heaptape_formats::tape::SITE_SIGNAL;

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
        assign(&mut stacks, vec![range(0x1000, 0x20, "old"), range(0, 1, "null"), range(0x1000, 0x10, "young")]);
        let names: Vec<String> = (1..=6)
            .map(|number| match stacks.site(number).named {
                0 => String::new(),
                place => String::from_utf8_lossy(&stacks.named[place as usize - 1].function).into_owned(),
            })
            .collect();
        // The call that returns to 0x1010 ends before it, and so in the young code; the one that
        // returns to 0x1020 in the old.
        assert_eq!(names, ["young", "", "young", "old", "", ""]);
    }
}
