//! Shortens names of functions and types.

/// Returns a name with its template arguments replaced by `with`. If the angle brackets do not
/// match, the name is returned unchanged.
pub(crate) fn without_arguments(name: &str, with: &str) -> String {
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

/// Returns where the function's own name begins in a text such as `shop::Cache<int>::get
/// cache.h:3`. The name of a lambda or closure is that of the function around it.
pub(crate) fn own_name(text: &str) -> usize {
    let (mut depth, mut starts, mut previous) = (0i32, vec![0], ' ');
    for (at, c) in text.char_indices() {
        match c {
            '<' | '(' | '{' => depth += 1,
            '>' if previous == '-' => {}
            '>' | ')' | '}' => depth = (depth - 1).max(0),
            ':' if depth == 0 && previous == ':' => starts.push(at + 1),
            _ => {}
        }
        previous = c;
    }
    let is_named = |start: &&usize| !text[**start..].starts_with('{') && !text[**start..].starts_with("operator()");
    starts.iter().rev().find(is_named).copied().unwrap_or(0)
}

/// Shortens a text to `width` characters: first it removes template arguments, then callers (after
/// ` < `), then scopes of the function. The own name of the first function and its location stay,
/// also if they are longer. Of other text it removes the end.
pub fn shorten(text: &str, width: usize) -> String {
    let fits = |text: &str| text.chars().count() <= width;
    if fits(text) {
        return text.to_string();
    }
    let (out, is_balanced) = replace_arguments(text, "<…>");
    let text = if is_balanced { &out } else { text };
    if fits(text) {
        return text.to_string();
    }
    let mut frames = text;
    while let Some((inner, _)) = frames.rsplit_once(" < ") {
        frames = inner;
        let shown = format!("{frames} < …");
        if fits(&shown) {
            return shown;
        }
    }
    if fits(frames) {
        return frames.to_string();
    }
    let own = own_name(frames);
    let (scopes, own_text) = frames.split_at(own);
    if own == 0 && !is_location(frames) {
        return frames.chars().take(width.saturating_sub(1)).chain(['…']).collect();
    }
    if own == 0 {
        return frames.to_string();
    }
    let scopes = scopes.trim_end_matches("::");
    let room = width.saturating_sub(own_text.chars().count() + "…::".chars().count());
    // The outermost scopes may be left out already.
    let kept: String = scopes.chars().take(if scopes.starts_with('…') { 0 } else { room }).collect();
    format!("{kept}…::{own_text}")
}

/// Returns whether a text is a name with its location: `insert_all table.c:12`, `insert_all (x)`.
fn is_location(text: &str) -> bool {
    let mut words = text.split(' ');
    let (Some(_), Some(location), None) = (words.next(), words.next(), words.next()) else {
        return !text.contains(' ');
    };
    location.starts_with('(')
        || location.rsplit_once(':').is_some_and(|(_, line)| line.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_lose_template_arguments_first() {
        let name = "std::map<std::string, std::vector<int> >::operator[] < shop::load(Order<int>)";
        assert_eq!(shorten(name, 60), "std::map<…>::operator[] < shop::load(Order<…>)");
        assert_eq!(shorten(name, 30), "std::map<…>::operator[] < …");
        assert_eq!(shorten(name, 20), "std::ma…::operator[]");
        assert_eq!(shorten(name, 5), "…::operator[]");
        assert_eq!(shorten("a->b->c", 7), "a->b->c");
        assert_eq!(shorten("operator<<", 5), "operator<<");
    }

    #[test]
    fn the_own_name_and_the_location_stay() {
        let long = "shop::warehouse::inventory::Table<int>::insert_all table.h:12,15 < shop::load(int) < main";
        assert_eq!(shorten(long, 80), "shop::warehouse::inventory::Table<…>::insert_all table.h:12,15 < …");
        assert_eq!(shorten(long, 50), "shop::warehouse::invent…::insert_all table.h:12,15");
        assert_eq!(shorten("insert_all_of_a_table table.c:12 < load < main", 20), "insert_all_of_a_table table.c:12");
        let lambda = "shop::warehouse::load_all(int)::{lambda(int)#1}::operator() load.cpp:3";
        assert_eq!(shorten(lambda, 40), "…::load_all(int)::{lambda(int)#1}::operator() load.cpp:3");
        assert_eq!(shorten("…::inventory::Table::insert table.h:12", 30), "…::insert table.h:12");
        assert_eq!(shorten("a sentence that has no name in it", 12), "a sentence …");
    }

    #[test]
    fn own_names_begin_after_the_scopes() {
        for (text, own) in [
            ("main", "main"),
            ("shop::Cache<a::b>::get", "get"),
            ("shop::f(int)::{lambda()#1}::operator()", "f(int)::{lambda()#1}::operator()"),
            ("shop::feed::{{closure}}", "feed::{{closure}}"),
            ("<shop::Cart as core::ops::Fn() -> R>::call", "call"),
            ("{lambda}::operator()", "{lambda}::operator()"),
            ("a::operator<< x.h:3", "operator<< x.h:3"),
            ("a::", ""),
            ("::", ""),
            (">>>a::b", "b"),
        ] {
            assert_eq!(&text[own_name(text)..], own, "{text}");
        }
    }
}
