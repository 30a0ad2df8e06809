//! Patterns of names: `*` stands for any text, `?` for one letter.

/// Whether a name fits. At worst the product of both lengths in time.
pub fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut place, mut star) = (0, 0, None);
    while place < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, place));
                at += 1;
            }
            Some(letter) if *letter == b'?' || *letter == name[place] => {
                at += 1;
                place += 1;
            }
            _ => match &mut star {
                Some((before, from)) => {
                    *from += 1;
                    (at, place) = (*before + 1, *from);
                }
                None => return false,
            },
        }
    }
    pattern[at.min(pattern.len())..].iter().all(|letter| *letter == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit() {
        for (pattern, name, is_fit) in [
            ("redis-*", "redis-server", true),
            ("redis-*", "redis", false),
            ("*", "", true),
            ("?at", "cat", true),
            ("a*b*c", "aXbXbc", true),
            ("a*b*c", "aXbXb", false),
            ("", "x", false),
            ("nginx", "nginx", true),
        ] {
            assert_eq!(fits(pattern.as_bytes(), name.as_bytes()), is_fit, "{pattern} {name}");
        }
        assert!(!fits("*a".repeat(100).as_bytes(), &[b'a'; 99]));
    }
}
