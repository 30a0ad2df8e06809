//! Shortens names of functions and types.

/// Returns a name with its template arguments replaced by `with`. If the angle brackets do not
/// match, the name is returned unchanged.
pub fn without_arguments(name: &str, with: &str) -> String {
    let (out, is_balanced) = replace_arguments(name, with);
    if is_balanced { out } else { name.to_string() }
}

/// Replaces outermost pairs of angle brackets with their content. Returns the result, and whether
/// each opened bracket is closed.
fn replace_arguments(text: &str, with: &str) -> (String, bool) {
    let mut depth = 0u32;
    let mut out = String::new();
    let mut previous = ' ';
    for (offset, c) in text.char_indices() {
        // `operator<`, `operator<<`, `->`, and ` < ` between frames are not brackets.
        let is_operator = text[..offset].trim_end_matches('<').ends_with("operator");
        let opens = c == '<' && previous != ' ' && !is_operator;
        let closes = c == '>' && previous != '-' && depth > 0;
        if opens && depth == 0 {
            out.push_str(with);
        }
        depth += u32::from(opens);
        if depth == 0 {
            out.push(c);
        }
        depth -= u32::from(closes);
        previous = c;
    }
    (out, depth == 0)
}

/// Shortens a text to at most `width` characters: first it removes template arguments, then the
/// end.
pub fn shorten(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_string();
    }
    let (out, is_balanced) = replace_arguments(text, "<…>");
    let count = out.chars().count();
    if !is_balanced || count > width {
        let out = if is_balanced { &out } else { text };
        let keep: String = out.chars().take(width.saturating_sub(1)).collect();
        return keep + "…";
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_lose_template_arguments_first() {
        let name = "std::map<std::string, std::vector<int> >::operator[] < shop::load(Order<int>)";
        assert_eq!(shorten(name, 60), "std::map<…>::operator[] < shop::load(Order<…>)");
        assert_eq!(shorten(name, 20), "std::map<…>::operat…");
        assert_eq!(shorten("a->b->c", 7), "a->b->c");
        assert_eq!(shorten("operator<<", 5), "oper…");
    }
}
