//! Patterns for names. There is one matcher with two syntaxes: [`Pattern::whole`] for names of
//! programs, threads and the like, and [`Pattern::found`] for text that contains something.

use std::fmt;

/// A pattern. Matching takes time that is at most proportional to the product of the lengths of
/// pattern and text, and no memory.
///
/// # Examples
///
/// ```
/// use heaptape_formats::pattern::Pattern;
///
/// assert!(Pattern::whole("redis-*").matches("redis-server"));
/// assert!(!Pattern::whole("redis-?").matches("redis-server"));
/// assert!(Pattern::found("^redis").matches("redis-server"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<Token>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    /// Any number of bytes, including none.
    Any,
    /// Any byte, exactly one.
    One,
    /// A byte with this value.
    Byte(u8),
}

impl fmt::Display for Pattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let byte = |token: &Token| match token {
            Token::Any => b'*',
            Token::One => b'?',
            Token::Byte(byte) => *byte,
        };
        out.write_str(&String::from_utf8_lossy(&self.0.iter().map(byte).collect::<Vec<u8>>()))
    }
}

impl Pattern {
    /// Creates a pattern in Valgrind's and the shell's syntax: it matches the complete text, `*`
    /// matches any text, and `?` matches one byte.
    pub fn whole(text: &str) -> Pattern {
        let token = |byte| match byte {
            b'*' => Token::Any,
            b'?' => Token::One,
            byte => Token::Byte(byte),
        };
        Pattern(text.bytes().map(token).collect())
    }

    /// Creates a pattern in LSan's syntax: it matches anywhere in the text, `*` matches any text,
    /// `^` anchors it at the start and `$` at the end. A `?` is itself.
    pub fn found(text: &str) -> Pattern {
        let (text, start) = text.strip_prefix('^').map_or((text, false), |rest| (rest, true));
        let (text, end) = text.strip_suffix('$').map_or((text, false), |rest| (rest, true));
        let mut tokens = if start { Vec::new() } else { vec![Token::Any] };
        tokens.extend(text.bytes().map(|byte| if byte == b'*' { Token::Any } else { Token::Byte(byte) }));
        if !end {
            tokens.push(Token::Any);
        }
        Pattern(tokens)
    }

    /// Returns whether the pattern matches a text, which need not be UTF-8.
    pub fn matches(&self, text: impl AsRef<[u8]>) -> bool {
        let (tokens, text) = (&self.0, text.as_ref());
        let (mut token, mut at) = (0, 0);
        // Index of the latest `Any`, and the offset up to which it matches. It is enough to
        // backtrack to this one.
        let mut backtrack: Option<(usize, usize)> = None;
        while at < text.len() {
            match tokens.get(token) {
                Some(Token::Any) => {
                    backtrack = Some((token, at));
                    token += 1;
                    continue;
                }
                Some(Token::One) => {}
                Some(Token::Byte(byte)) if *byte == text[at] => {}
                _ => {
                    let Some((any, start)) = backtrack else { return false };
                    (token, at) = (any + 1, start + 1);
                    backtrack = Some((any, start + 1));
                    continue;
                }
            }
            (token, at) = (token + 1, at + 1);
        }
        tokens[token..].iter().all(|token| *token == Token::Any)
    }
}

impl From<&str> for Pattern {
    /// Creates a pattern in the syntax of [`Pattern::whole`].
    fn from(text: &str) -> Pattern {
        Pattern::whole(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_patterns_have_stars_and_question_marks() {
        for (pattern, name, expected) in [
            ("redis-*", "redis-server", true),
            ("redis-*", "redis", false),
            ("*", "", true),
            ("?at", "cat", true),
            ("a?c", "abbc", false),
            ("a*b*c", "aXbXbc", true),
            ("a*b*c", "aXbXb", false),
            ("", "x", false),
            ("nginx", "nginx", true),
            ("cc1", "cc1plus", false),
            ("cc1*", "cc1plus", true),
            ("*plus", "cc1plus", true),
            ("c*p*s", "cc1plus", true),
            ("c*p*x", "cc1plus", false),
            ("*1*1*", "cc1plus", false),
            ("a*a", "a", false),
            ("*lib*.so*", "/usr/lib/libc.so.6", true),
            ("abc", "ab", false),
            ("^a$", "a", false),
        ] {
            assert_eq!(Pattern::whole(pattern).matches(name), expected, "{pattern} {name}");
        }
        assert!(Pattern::whole("a?c").matches(b"a\xffc"));
    }

    #[test]
    fn found_patterns_match_anywhere_unless_anchored() {
        for (pattern, text, expected) in [
            ("leak", "my_leaky", true),
            ("^leak", "my_leaky", false),
            ("^my*ky$", "my_leaky", true),
            ("ea*y$", "my_leaky_one", false),
            ("", "anything", true),
            ("^$", "", true),
            ("a?c", "abc", false),
            ("a?c", "xa?cx", true),
        ] {
            assert_eq!(Pattern::found(pattern).matches(text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_do_not_multiply_the_time() {
        assert!(!Pattern::whole(&"*a".repeat(100)).matches([b'a'; 99]));
        assert!(!Pattern::whole(&("*a".repeat(50) + "b")).matches("a".repeat(10_000)));
    }
}
