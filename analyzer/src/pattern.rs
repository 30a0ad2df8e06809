//! Patterns for names as suppression files and filters write them.

use crate::text::without_arguments;

/// A pattern. It is matched in time proportional to pattern and text, whatever the pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<Token>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    /// Any bytes, none too.
    Any,
    /// One byte, whichever.
    One,
    /// This byte.
    Byte(u8),
}

impl Pattern {
    /// As in LSan's files: found anywhere in the text, `*` is anything, `^` at the start and `$` at
    /// the end hold it there.
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

    /// As in valgrind's files: the whole text, with `*` for anything and `?` for one character.
    pub fn whole(text: &str) -> Pattern {
        let token = |byte| match byte {
            b'*' => Token::Any,
            b'?' => Token::One,
            byte => Token::Byte(byte),
        };
        Pattern(text.bytes().map(token).collect())
    }

    /// Whether the text is such.
    pub fn matches(&self, text: &str) -> bool {
        let (tokens, text) = (&self.0, text.as_bytes());
        let (mut token, mut at) = (0, 0);
        // Where the latest `Any` stands, and how far it has swallowed: only that one is ever tried
        // again.
        let mut back: Option<(usize, usize)> = None;
        while at < text.len() {
            match tokens.get(token) {
                Some(Token::Any) => {
                    back = Some((token, at));
                    token += 1;
                    continue;
                }
                Some(Token::One) => {}
                Some(Token::Byte(byte)) if *byte == text[at] => {}
                _ => {
                    let Some((any, from)) = back else { return false };
                    (token, at) = (any + 1, from + 1);
                    back = Some((any, from + 1));
                    continue;
                }
            }
            (token, at) = (token + 1, at + 1);
        }
        tokens[token..].iter().all(|token| *token == Token::Any)
    }
}

/// A function's name as a person writes it, or as reports print it: `…` is anything too, and
/// template arguments may be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionPattern(Pattern);

impl FunctionPattern {
    /// Found anywhere in the name, as [`Pattern::found`].
    pub fn new(text: &str) -> Self {
        FunctionPattern(Pattern::found(&text.replace('…', "*")))
    }

    /// Whether a function has such a name, with or without its template arguments.
    pub fn matches(&self, name: &str) -> bool {
        self.0.matches(name) || (name.contains('<') && self.0.matches(&without_arguments(name, "")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_by_the_names_that_reports_print() {
        let name =
            "shop::LruCache<std::string, shop::Session<int> >::get_or_make<shop::session_for(int)::{lambda()#1}>(int)";
        for (pattern, hit) in [
            ("get_or_make", true),
            ("shop::LruCache<…>::get_or_make<…>", true),
            ("shop::LruCache::get_or_make", true),
            ("LruCache::get_or_make", true),
            ("^shop::LruCache::get", true),
            ("LruCache<std::string", true),
            ("LruCache::put", false),
            ("shop::LruCache<…>::put", false),
        ] {
            assert_eq!(FunctionPattern::new(pattern).matches(name), hit, "{pattern}");
        }
        assert!(FunctionPattern::new("LruCache::LruCache").matches("shop::LruCache<int>::LruCache(int)"));
        assert!(FunctionPattern::new("operator<").matches("bool operator< <int>(int)"));
        assert!(FunctionPattern::new("Vec::push").matches("alloc::vec::Vec<T>::push"));
    }

    #[test]
    fn both_dialects() {
        for (pattern, text, hit) in [
            ("leak", "my_leaky", true),
            ("^leak", "my_leaky", false),
            ("^my*ky$", "my_leaky", true),
            ("ea*y$", "my_leaky_one", false),
            ("", "anything", true),
            ("^$", "", true),
        ] {
            assert_eq!(Pattern::found(pattern).matches(text), hit, "{pattern} {text}");
        }
        for (pattern, text, hit) in [
            ("a?c", "abc", true),
            ("a?c", "abbc", false),
            ("*lib*.so*", "/usr/lib/libc.so.6", true),
            ("abc", "ab", false),
        ] {
            assert_eq!(Pattern::whole(pattern).matches(text), hit, "{pattern} {text}");
        }
        let slow = "*a".repeat(50) + "b";
        assert!(!Pattern::whole(&slow).matches(&"a".repeat(10_000)));
    }
}
