//! Glob patterns of names: `*` matches any text, `?` one byte.

/// Returns whether `name` matches `pattern`. The time is at most proportional to the product of
/// both lengths.
///
/// # Examples
///
/// ```
/// use heaptape_formats::pattern::matches;
///
/// assert!(matches(b"redis-*", b"redis-server"));
/// assert!(!matches(b"redis-?", b"redis-server"));
/// ```
pub fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut pattern_index, mut name_index, mut star) = (0, 0, None);
    while name_index < name.len() {
        match pattern.get(pattern_index) {
            Some(b'*') => {
                star = Some((pattern_index, name_index));
                pattern_index += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[name_index] => {
                pattern_index += 1;
                name_index += 1;
            }
            _ => match &mut star {
                Some((before, from)) => {
                    *from += 1;
                    (pattern_index, name_index) = (*before + 1, *from);
                }
                None => return false,
            },
        }
    }
    pattern[pattern_index.min(pattern.len())..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, name, expected) in [
            ("redis-*", "redis-server", true),
            ("redis-*", "redis", false),
            ("*", "", true),
            ("?at", "cat", true),
            ("a*b*c", "aXbXbc", true),
            ("a*b*c", "aXbXb", false),
            ("", "x", false),
            ("nginx", "nginx", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
        assert!(!matches("*a".repeat(100).as_bytes(), &[b'a'; 99]));
    }
}
