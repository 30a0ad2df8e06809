//! Names of Rust functions with the types that they are made for. Legacy mangling, the default of
//! stable compilers, drops them: the symbol says `alloc::boxed::Box<T>::new`. DWARF has them in the
//! plain name, `new<shop::Order>`, and the names of the parameters beside.

/// Returns whether a symbol is mangled in the legacy way: `_ZN…17h` and the hash.
pub(super) fn is_legacy(symbol: &str) -> bool {
    /// Length of `17h`, 16 digits and `E`.
    const END: usize = 20;
    let end = symbol.len().checked_sub(END).and_then(|at| symbol.get(at..));
    symbol.starts_with("_ZN")
        && end
            .and_then(|end| end.strip_prefix("17h")?.strip_suffix('E'))
            .is_some_and(|hash| hash.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')))
}

/// Returns a demangled legacy name with the arguments of `plain` in place of the parameters: of
/// `alloc::boxed::Box<T>::new` and `new<shop::Order>` it makes `alloc::boxed::Box<shop::Order>::new`.
/// A parameter that the name doesn't have, e.g. one of the function itself, is left out.
pub(super) fn with_arguments(name: &str, plain: &str, parameters: &[String]) -> Option<String> {
    let (_, arguments) = plain.split_once('<')?;
    let arguments = split(arguments.strip_suffix('>')?);
    if arguments.len() != parameters.len() {
        return None;
    }
    let (mut out, mut depth) = (String::with_capacity(name.len()), 0u32);
    let is_letter = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        let length = if is_letter(first) { rest.find(|letter| !is_letter(letter)) } else { Some(first.len_utf8()) };
        let (word, after) = rest.split_at(length.unwrap_or(rest.len()));
        match word {
            "<" => depth += 1,
            ">" if !out.ends_with('-') => depth = depth.saturating_sub(1),
            _ => {}
        }
        let known = parameters.iter().position(|parameter| parameter == word);
        // A module may have the name of a parameter, too.
        let is_part = out.ends_with("::") || after.starts_with("::");
        match known.filter(|_| depth > 0 && !is_part) {
            Some(number) => out += arguments[number],
            None => out += word,
        }
        rest = after;
    }
    Some(out)
}

/// Returns the arguments of a list.
fn split(list: &str) -> Vec<&str> {
    let (mut found, mut start, mut depth, mut before) = (Vec::new(), 0, 0i32, ' ');
    for (at, letter) in list.char_indices() {
        match letter {
            '<' | '(' | '[' | '{' => depth += 1,
            '>' if before == '-' => {}
            '>' | ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(list[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
        before = letter;
    }
    found.push(list[start..].trim());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_replaced_by_the_types_of_the_plain_name() {
        let of = |name: &str, plain: &str, parameters: &[&str]| {
            let parameters: Vec<String> = parameters.iter().map(|name| (*name).into()).collect();
            with_arguments(name, plain, &parameters).unwrap_or_default()
        };
        assert_eq!(of("alloc::boxed::Box<T>::new", "new<rs::Order>", &["T"]), "alloc::boxed::Box<rs::Order>::new");
        assert_eq!(
            of("alloc::vec::Vec<T,A>::push", "push<(u8, fn(i32) -> T), alloc::alloc::Global>", &["T", "A"]),
            "alloc::vec::Vec<(u8, fn(i32) -> T),alloc::alloc::Global>::push"
        );
        assert_eq!(
            of("<alloc::vec::Vec<T,A> as T::A>::drop", "drop<u8, shop::Pool>", &["T", "A"]),
            "<alloc::vec::Vec<u8,shop::Pool> as T::A>::drop"
        );
        // One of the function itself, and a number of arguments that does not fit.
        assert_eq!(of("hashbrown::map::make_hash", "make_hash<u64, S>", &["Q", "S"]), "hashbrown::map::make_hash");
        assert_eq!(of("alloc::boxed::Box<T>::new", "new<u8, u8>", &["T"]), "");
        assert_eq!(of("shop::main", "main", &[]), "");
    }

    #[test]
    fn legacy_names_are_known_by_their_hash() {
        assert!(is_legacy("_ZN5alloc5boxed12Box$LT$T$GT$3new17h5450c2ca8fdafe7dE"));
        for other in ["_ZN3std6vectorE", "_RNvNtCs5alloc5boxed3new", "_ZN", "", "_ZN1a17h5450c2ca8fdafe7xE", "é"] {
            assert!(!is_legacy(other), "{other}");
        }
    }
}
