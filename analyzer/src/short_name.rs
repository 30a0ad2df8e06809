//! Short names of functions, the same in all text and on the page. The full name is always at hand:
//! by an option, in JSON, or in a tooltip.

use crate::text::{own_name, without_arguments};

/// Maximum length of a name that is not shortened, in characters.
const LONG: usize = 60;

/// How long names are in text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NameLength {
    /// At most about [`LONG`] characters, but never without the function's own name.
    #[default]
    Short,
    Full,
}

impl NameLength {
    /// Returns a function's name in this length.
    pub fn of(self, name: &str) -> String {
        match self {
            NameLength::Short => short_name(name),
            NameLength::Full => name.to_owned(),
        }
    }
}

/// Returns the name without ABI tags and inline namespaces of the C++ library. A long one loses its
/// template arguments, then the middle of its scopes: `shop::…::Cache::get`. Of a Rust method it
/// then has the type, without the trait: `<Vec<T> as Extend<T>>::extend` is `Vec::extend`.
pub fn short_name(name: &str) -> String {
    let name = without_library_details(name);
    if name.chars().count() <= LONG {
        return name;
    }
    without_middle(without_types(&name))
}

/// Returns the name without what only the C++ library knows.
fn without_library_details(name: &str) -> String {
    if !name.contains("std::") && !name.contains("[abi:") {
        return name.to_owned();
    }
    let name = name.replace("std::__cxx11::", "std::").replace("[abi:cxx11]", "");
    let name = name.replace("std::basic_string<char, std::char_traits<char>, std::allocator<char> >", "std::string");
    name.replace("std::basic_string<char, std::char_traits<char>, std::allocator<char>>", "std::string")
}

/// Returns the name without template arguments and the traits of methods.
fn without_types(name: &str) -> String {
    let name = without_qualified_self(name);
    if !name.starts_with(|first: char| first.is_alphanumeric() || "_~{(".contains(first)) {
        return name;
    }
    let short = without_arguments(&name, "");
    // Rust writes arguments of functions after `::`.
    short.trim_end_matches("::").replace("::::", "::")
}

/// Replaces the middle of the scopes of a long name, and keeps the first and as many of the last as
/// fit.
fn without_middle(name: String) -> String {
    const LEFT_OUT: &str = "…::";
    if name.chars().count() <= LONG {
        return name;
    }
    let own = own_name(&name);
    if own == 0 {
        return name;
    }
    let first = name[..own].trim_end_matches("::").split_once("::").map_or("", |(first, _)| &name[..first.len() + 2]);
    let fits = |kept: &str, start: usize| {
        kept.chars().count() + LEFT_OUT.chars().count() + name[start..].chars().count() <= LONG
    };
    let starts = || name[..own].match_indices("::").map(|(at, _)| at + 2).chain([own]);
    // The scope of the function, e.g. its class, tells more than the outermost one.
    let scope = starts().filter(|&start| start < own && fits("", start)).last().unwrap_or(own);
    let first = if fits(first, scope) { first } else { "" };
    let start = starts().filter(|&start| start > first.len()).find(|&start| fits(first, start)).unwrap_or(own);
    format!("{first}{LEFT_OUT}{}", &name[start..])
}

/// Replaces `<Type as Trait>::rest` and `<Type>::rest` by `Type::rest`.
fn without_qualified_self(name: &str) -> String {
    let Some(inner) = name.strip_prefix('<') else { return name.to_owned() };
    let (mut depth, mut end, mut trait_at) = (1, None, None);
    let mut previous = ' ';
    for (at, c) in inner.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if previous != '-' => depth -= 1,
            ' ' if depth == 1 && trait_at.is_none() && inner[at..].starts_with(" as ") => trait_at = Some(at),
            _ => {}
        }
        if depth == 0 {
            end = Some(at);
            break;
        }
        previous = c;
    }
    match end {
        Some(end) if inner[end + 1..].starts_with("::") => {
            format!("{}{}", &inner[..trait_at.unwrap_or(end)], &inner[end + 1..])
        }
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_what_tells_functions_apart() {
        let string = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";
        for (name, expected) in [
            ("main", "main"),
            ("operator new", "operator new"),
            ("operator<<", "operator<<"),
            ("std::operator<< <char>", "std::operator<< <char>"),
            (&format!("{string}::_M_append"), "std::string::_M_append"),
            ("shop::render[abi:cxx11]", "shop::render"),
            ("shop::LruCache<int, Session>::get_or_make<shop::f()::<lambda()> >", "shop::LruCache::get_or_make"),
            ("shop::LruCache<int, Session>::get_or_make", "shop::LruCache<int, Session>::get_or_make"),
            ("<shop::Cart as core::ops::Drop>::drop", "<shop::Cart as core::ops::Drop>::drop"),
            ("shop::session_for(int)::{lambda()#1}::operator()", "shop::session_for(int)::{lambda()#1}::operator()"),
            (
                "shop::warehouse::inventory::replication::conflict::Resolver::settle",
                "shop::…::inventory::replication::conflict::Resolver::settle",
            ),
            (
                "a_company_with_a_long_name::inner::detail::BidirectionalContainer::insert_with_rehash",
                "…::inner::detail::BidirectionalContainer::insert_with_rehash",
            ),
            (
                "a_company_with_a_very_long_name_for_its_outermost_namespace::inner::Cache::insert",
                "…::inner::Cache::insert",
            ),
            (
                "shop::a_function_with_a_name_that_alone_is_longer_than_all_that_fits_into_a_line",
                "…::a_function_with_a_name_that_alone_is_longer_than_all_that_fits_into_a_line",
            ),
            (
                "warehouse::inventory::replication::consume_all_pending_orders::{lambda(int)#2}::operator()",
                "…::consume_all_pending_orders::{lambda(int)#2}::operator()",
            ),
            (
                "a_c_function_with_a_name_that_alone_is_longer_than_all_that_fits_into_a_line",
                "a_c_function_with_a_name_that_alone_is_longer_than_all_that_fits_into_a_line",
            ),
            // Names that are no C++ or Rust stay as they are.
            ("a<b", "a<b"),
            ("<", "<"),
            ("<module>", "<module>"),
            ("</script><script>x</script>", "</script><script>x</script>"),
        ] {
            assert_eq!(short_name(name), expected, "{name}");
        }
        for (name, expected) in [
            ("<shop::Cart as core::ops::Drop>::drop", "shop::Cart::drop"),
            ("<alloc::vec::Vec<T,A> as core::iter::Extend<T>>::extend", "alloc::vec::Vec::extend"),
            ("alloc::vec::Vec<T>::with_capacity", "alloc::vec::Vec::with_capacity"),
            ("core::iter::from_fn::<u8, F>", "core::iter::from_fn"),
            ("<F as core::ops::Fn() -> R>::call", "F::call"),
        ] {
            assert_eq!(without_types(name), expected, "{name}");
        }
    }

    #[test]
    fn hostile_names_are_shortened_too() {
        for name in
            ["::".repeat(100), "<".repeat(100), "ä::".repeat(100), "…".repeat(100), format!("a{}", "::b<".repeat(50))]
        {
            let short = short_name(&name);
            assert!(short.len() <= name.len() + 8, "{name}: {short}");
        }
    }
}
