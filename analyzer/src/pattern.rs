//! Patterns for names, in the syntax of suppression files and filters.

use crate::text::without_arguments;

/// A pattern. Matching takes time proportional to the lengths of pattern and text.
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

impl Pattern {
    /// Creates a pattern in LSan's syntax: it matches anywhere in the text, `*` matches any text,
    /// `^` anchors it at the start and `$` at the end.
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

    /// Creates a pattern in Valgrind's syntax: it matches the complete text, `*` matches any text,
    /// and `?` matches one byte.
    pub fn whole(text: &str) -> Pattern {
        let token = |byte| match byte {
            b'*' => Token::Any,
            b'?' => Token::One,
            byte => Token::Byte(byte),
        };
        Pattern(text.bytes().map(token).collect())
    }

    /// Returns whether the pattern matches a text.
    pub fn matches(&self, text: &str) -> bool {
        let (tokens, text) = (&self.0, text.as_bytes());
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

/// A pattern for function names, as users write them or as reports print them: `…` matches any
/// text, too, and template arguments may be omitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionPattern(Pattern);

impl FunctionPattern {
    /// Creates a pattern in the syntax of [`Pattern::found`].
    pub fn new(text: &str) -> Self {
        FunctionPattern(Pattern::found(&text.replace('…', "*")))
    }

    /// Returns whether a function name matches, with or without its template arguments.
    pub fn matches(&self, name: &str) -> bool {
        self.0.matches(name) || (name.contains('<') && self.0.matches(&without_arguments(name, "")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_patterns_match_the_names_that_reports_print() {
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
    fn lsan_and_valgrind_patterns_match() {
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
