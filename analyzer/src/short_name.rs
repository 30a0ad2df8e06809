//! Short names of functions, for places with little space. The full name is always at hand there.

use crate::text::without_arguments;

/// Returns the name without template arguments, ABI tags and inline namespaces of the C++ library.
/// Of a Rust method it keeps the type, without the trait: `<Vec<T> as Extend<T>>::extend` is
/// `Vec::extend`.
pub(crate) fn short_name(name: &str) -> String {
    let name = without_qualified_self(name);
    let name = name.replace("std::__cxx11::", "std::").replace("[abi:cxx11]", "");
    let name = name.replace("std::basic_string<char, std::char_traits<char>, std::allocator<char> >", "std::string");
    let name = name.replace("std::basic_string<char, std::char_traits<char>, std::allocator<char>>", "std::string");
    if !name.starts_with(|first: char| first.is_alphanumeric() || "_~{(".contains(first)) {
        return name;
    }
    let short = without_arguments(&name, "");
    // Rust writes arguments of functions after `::`.
    short.trim_end_matches("::").replace("::::", "::")
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
            ("<shop::Cart as core::ops::Drop>::drop", "shop::Cart::drop"),
            ("<alloc::vec::Vec<T,A> as core::iter::Extend<T>>::extend", "alloc::vec::Vec::extend"),
            ("alloc::vec::Vec<T>::with_capacity", "alloc::vec::Vec::with_capacity"),
            ("core::iter::from_fn::<u8, F>", "core::iter::from_fn"),
            ("<F as core::ops::Fn() -> R>::call", "F::call"),
            ("shop::session_for(int)::{lambda()#1}::operator()", "shop::session_for(int)::{lambda()#1}::operator()"),
            // Names that are no C++ or Rust stay as they are.
            ("a<b", "a<b"),
            ("<", "<"),
            ("<module>", "<module>"),
            ("</script><script>x</script>", "</script><script>x</script>"),
        ] {
            assert_eq!(short_name(name), expected, "{name}");
        }
    }
}
