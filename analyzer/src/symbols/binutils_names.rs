//! Demangles names in the style of the binutils, with parameters and return types.

use super::bounded_name::BoundedName;

/// Maximum length of a demangled name in bytes. Real names are shorter.
const MAX_NAME_LEN: usize = 1 << 16;

/// Returns the demangled name in the style of binutils, or the name itself if it is not mangled.
pub(super) fn demangle(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    let plain = if name.starts_with("_Z") { demangle_cpp(name) } else { None };
    let Some(plain) = plain else { return name.to_owned() };
    let plain = with_first_parameter(name, &plain).unwrap_or(plain);
    shorten_literals(with_references(name, &plain).unwrap_or(plain))
}

fn demangle_cpp(name: &str) -> Option<String> {
    let mut out = BoundedName::new(MAX_NAME_LEN);
    let options = cpp_demangle::DemangleOptions::new();
    cpp_demangle::Symbol::new(name.as_bytes()).ok()?.structured_demangle(&mut out, &options).ok()?;
    Some(out.into_text())
}

/// Demangles a constructor template with all its parameters.
///
/// cpp_demangle 0.5 takes the first parameter of a constructor template for the return type and
/// omits it. So this function inserts a return type, which is then omitted instead.
fn with_first_parameter(name: &str, plain: &str) -> Option<String> {
    const MAX_LEN: usize = 2048;
    if name.len() > MAX_LEN || !["C1I", "C2I", "C3I"].iter().any(|mark| name.contains(mark)) {
        return None;
    }
    let ends = name.bytes().enumerate().filter(|&(_, byte)| byte == b'E').map(|(index, _)| index + 1);
    let end = ends.into_iter().find(|&end| cpp_demangle::Symbol::new(&name.as_bytes()[..end]).is_ok())?;
    let (function, parameters) = name.split_at(end);
    let repaired = demangle_cpp(&format!("{function}v{parameters}"))?;
    // The repair is correct if only the parameters have changed.
    (before_parameters(&repaired)? == before_parameters(plain)?).then_some(repaired)
}

/// Adds the `&&` of forwarding references to the parameters of a pack.
///
/// If a function takes a whole pack by forwarding reference (`Args&&... args`, `DpOT_` at the end
/// of the name), cpp_demangle 0.5 prints the types without the reference: `f(std::tuple<>)` for
/// `f(std::tuple<>&&)`. The number of such parameters follows from the template arguments.
fn with_references(name: &str, plain: &str) -> Option<String> {
    let number = name.strip_suffix('_')?.rsplit_once("DpOT")?.1;
    let before = if number.is_empty() { 0 } else { 1 + number.parse::<usize>().ok()? };
    // For an empty pack, cpp_demangle leaves a comma in the arguments and `&&` in the parameters.
    let function = before_parameters(plain)?;
    let function = function.strip_suffix(", >").map_or(function.to_owned(), |before| format!("{before}>"));
    let arguments = last_list(function.strip_suffix('>')?.trim_end(), '<')?;
    let mut parameters = last_list(plain.strip_suffix(')')?, '(')?;
    parameters.retain(|parameter| !parameter.is_empty() && *parameter != "&&");
    let pack = arguments.len().checked_sub(before)?;
    let first = parameters.len().checked_sub(pack)?;
    let forwarded = |parameter: &str| match parameter {
        // Here the reference would have to be inside: `int (&&)[3]`, `void (*&&)(int)`.
        _ if parameter.ends_with(['&', ']']) || parameter.contains(")(") => parameter.to_owned(),
        _ => format!("{parameter}&&"),
    };
    let shown = parameters.iter().enumerate().map(|(index, parameter)| match index < first {
        true => (*parameter).to_owned(),
        false => forwarded(parameter),
    });
    Some(format!("{function}({})", shown.collect::<Vec<_>>().join(", ")))
}

/// Returns the elements of the list at the end of a text. The closing bracket must have been
/// removed.
fn last_list(text: &str, open: char) -> Option<Vec<&str>> {
    let (mut elements, mut depth, mut end) = (Vec::new(), 0u32, text.len());
    // `->` and operators contain brackets that do not match, and would need a parser.
    if text.contains("->") || text.contains("operator") {
        return None;
    }
    for (offset, c) in text.char_indices().rev() {
        match c {
            '>' | ')' | ']' | '}' => depth += 1,
            _ if c == open && depth == 0 => {
                let element = text[offset + 1..end].trim();
                if !element.is_empty() {
                    elements.push(element);
                }
                elements.reverse();
                return Some(elements);
            }
            '<' | '(' | '[' | '{' => depth = depth.checked_sub(1)?,
            ',' if depth == 0 => {
                elements.push(text[offset + 1..end].trim());
                end = offset;
            }
            _ => {}
        }
    }
    None
}

/// Returns the part of a demangled name before its parameter list, or `None` if it has none.
fn before_parameters(plain: &str) -> Option<&str> {
    let mut depth = 0u32;
    let opening = plain.bytes().rposition(|byte| {
        depth = match byte {
            b')' => depth + 1,
            b'(' => depth.saturating_sub(1),
            _ => depth,
        };
        byte == b'(' && depth == 0
    });
    plain.ends_with(')').then(|| &plain[..opening.unwrap_or(0)])
}

/// Rewrites number literals in C++ syntax: `0ul` instead of `(unsigned long)0`.
fn shorten_literals(mut name: String) -> String {
    const CASTS: [(&str, &str); 5] = [
        ("(unsigned long long)", "ull"),
        ("(unsigned long)", "ul"),
        ("(long long)", "ll"),
        ("(long)", "l"),
        ("(unsigned int)", "u"),
    ];
    for (cast, suffix) in CASTS {
        let mut from = 0;
        while let Some(start) = name[from..].find(cast).map(|offset| offset + from) {
            let rest = &name[start + cast.len()..];
            let digits = rest
                .bytes()
                .enumerate()
                .take_while(|&(index, b)| b.is_ascii_digit() || index == 0 && b == b'-')
                .count();
            if digits == 0 {
                from = start + cast.len();
                continue;
            }
            let number = format!("{}{suffix}", &rest[..digits]);
            name.replace_range(start..start + cast.len() + digits, &number);
            from = start + number.len();
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constructor_templates_keep_their_first_parameter() {
        let name = "_ZNSt10_Head_baseILm0EONSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEELb0EEC2IS5_EEOT_";
        let end = "::_Head_base<std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > >\
                   (std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >&&)";
        assert!(demangle(name).ends_with(end), "{}", demangle(name));
    }

    #[test]
    fn packs_keep_their_forwarding_references() {
        for (name, plain) in [
            ("_Z1fIJiOdRKcEEvDpOT_", "void f<int, double&&, char const&>(int&&, double&&, char const&)"),
            (
                "_Z1gIlJiSt5tupleIJEEEEvRKT_DpOT0_",
                "void g<long, int, std::tuple<> >(long const&, int&&, std::tuple<>&&)",
            ),
            ("_Z1fIJEEvDpOT_", "void f<>()"),
            ("_Z1gIiJEEvOT_DpOT0_", "void g<int>(int&&)"),
        ] {
            assert_eq!(demangle(name), plain);
        }
    }
}
