//! Finds names similar to a misspelled one, for messages.

use crate::text::clean;
use std::collections::BTreeSet;

/// Maximum number of names in a message.
const LISTED: usize = 3;
/// Number of characters that are compared. The time is proportional to the product of both lengths.
const MAX_LENGTH: usize = 128;
/// Maximum number of names that are compared. A recording may have a million.
const MAX_NAMES: usize = 100_000;
/// Minimum similarity of a name that is listed.
const MIN_SIMILARITY: f64 = 0.6;

/// Returns the similarity of two names from 0 to 1, plus 1 if one contains the other.
fn similarity(wanted: &str, name: &str) -> f64 {
    let normalize = |text: &str| text.to_lowercase().chars().filter(|c| *c != '_').take(MAX_LENGTH).collect::<String>();
    let (wanted, name) = (normalize(wanted), normalize(name));
    if wanted.is_empty() || name.is_empty() {
        return 0.0;
    }
    // `lru_cach` means `shop::LruCache<int>`, so each component of a qualified name is compared.
    let compare = |name: &str| strsim::normalized_damerau_levenshtein(&wanted, name);
    let best = name.split(|c: char| !c.is_alphanumeric()).chain([name.as_str()]).map(compare).fold(0.0, f64::max);
    let is_contained = name.contains(&wanted) || (name.chars().count() > 3 && wanted.contains(&name));
    best + f64::from(u8::from(is_contained))
}

/// Returns the names that are most similar to `wanted`, best first. Control characters in them are
/// replaced.
pub(crate) fn similar_names<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let wanted = wanted.trim_matches(['*', '?', '^', '$', '…']);
    let known: BTreeSet<&str> = names.into_iter().take(MAX_NAMES).collect();
    let mut rated: Vec<(f64, &str)> = known.into_iter().map(|name| (similarity(wanted, name), name)).collect();
    rated.retain(|(similarity, _)| *similarity >= MIN_SIMILARITY);
    rated.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    rated.into_iter().take(LISTED).map(|(_, name)| clean(name).into_owned()).collect()
}

/// Returns the end of a message about a name that matches nothing: `; similar: a, b`, or some of
/// the existing names.
pub fn hint<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str> + Clone) -> String {
    let similar = similar_names(wanted, names.clone());
    if !similar.is_empty() {
        return format!("; similar: {}", similar.join(", "));
    }
    let all: BTreeSet<&str> = names.into_iter().filter(|name| !name.is_empty()).take(MAX_NAMES).collect();
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
    fn misspelled_and_partial_names_are_found() {
        let names = ["shop::LruCache<int>::insert", "load_order", "index_orders", "read_name", "main"];
        for (wanted, first) in [
            ("load_ordre", "load_order"),
            ("LOAD_ORDER", "load_order"),
            ("*lru_cache*", "shop::LruCache<int>::insert"),
            ("inser", "shop::LruCache<int>::insert"),
            ("mian", "main"),
        ] {
            assert_eq!(similar_names(wanted, names).first().map(String::as_str), Some(first), "{wanted}");
        }
        assert_eq!(similar_names("zzz", names), Vec::<String>::new());
        assert_eq!(similar_names("", names), Vec::<String>::new());
        assert_eq!(hint("zzz", ["b", "a"]), "; there are a, b");
        assert_eq!(hint("zzz", names), "; there are index_orders, load_order, main and 2 more");
        assert_eq!(similar_names("evil", ["evil\x1b[2J"]), ["evil\u{fffd}[2J"]);
    }
}
