//! Names near a misspelled one, for messages.

use crate::text::clean;
use std::collections::BTreeSet;

/// Names that a message lists.
const LISTED: usize = 3;
/// Names of which only the first bytes are compared: a distance takes the product of both lengths.
const COMPARED: usize = 128;
/// Names that are compared: a recording may hold a million.
const MOST: usize = 100_000;
/// A name that is less similar than this is another name.
const SIMILAR: f64 = 0.6;

/// How similar a name is to what was written, from 0 to 1; above 1 if one contains the other.
fn similarity(wanted: &str, name: &str) -> f64 {
    let cut = |text: &str| text.to_lowercase().chars().filter(|c| *c != '_').take(COMPARED).collect::<String>();
    let (wanted, name) = (cut(wanted), cut(name));
    if wanted.is_empty() || name.is_empty() {
        return 0.0;
    }
    // `lru_cach` means `shop::LruCache<int>`: each part of a qualified name counts as a name.
    let part = |name: &str| strsim::normalized_damerau_levenshtein(&wanted, name);
    let parts = name.split(|c: char| !c.is_alphanumeric()).chain([name.as_str()]).map(part).fold(0.0, f64::max);
    let contained = name.contains(&wanted) || (name.chars().count() > 3 && wanted.contains(&name));
    parts + f64::from(u8::from(contained))
}

/// The names that are most similar to `wanted`, best first; none if nothing is similar. They are
/// safe to print.
pub fn near<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let wanted = wanted.trim_matches(['*', '?', '^', '$', '…']);
    let known: BTreeSet<&str> = names.into_iter().take(MOST).collect();
    let mut rated: Vec<(f64, &str)> = known.into_iter().map(|name| (similarity(wanted, name), name)).collect();
    rated.retain(|(similarity, _)| *similarity >= SIMILAR);
    rated.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    rated.into_iter().take(LISTED).map(|(_, name)| clean(name).into_owned()).collect()
}

/// The end of a message about a name that matches nothing: `; similar: a, b`, or some of the names
/// there are.
pub fn hint<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str> + Clone) -> String {
    let near = near(wanted, names.clone());
    if !near.is_empty() {
        return format!("; similar: {}", near.join(", "));
    }
    let all: BTreeSet<&str> = names.into_iter().filter(|name| !name.is_empty()).take(MOST).collect();
    let some: Vec<_> = all.iter().take(LISTED).map(|name| clean(name)).collect();
    match all.len() {
        0 => String::new(),
        count if count > LISTED => format!("; there are {} and {} more", some.join(", "), count - LISTED),
        1 => format!("; there is {}", some[0]),
        _ => format!("; there are {}", some.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelled_and_partial_names_find_the_right_one() {
        let names = ["shop::LruCache<int>::insert", "load_order", "index_orders", "read_name", "main"];
        for (wanted, first) in [
            ("load_ordre", "load_order"),
            ("LOAD_ORDER", "load_order"),
            ("*lru_cache*", "shop::LruCache<int>::insert"),
            ("inser", "shop::LruCache<int>::insert"),
            ("mian", "main"),
        ] {
            assert_eq!(near(wanted, names).first().map(String::as_str), Some(first), "{wanted}");
        }
        assert_eq!(near("zzz", names), Vec::<String>::new());
        assert_eq!(near("", names), Vec::<String>::new());
        assert_eq!(hint("zzz", ["b", "a"]), "; there are a, b");
        assert_eq!(hint("zzz", names), "; there are index_orders, load_order, main and 2 more");
        assert_eq!(near("evil", ["evil\x1b[2J"]), ["evil\u{fffd}[2J"]);
    }
}
