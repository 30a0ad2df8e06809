//! Patterns for names of functions, as users write them.

use crate::text::without_arguments;
use heaptape_formats::pattern::Pattern;

/// A pattern for function names, as users write them or as reports print them: `…` matches any
/// text, too, and template arguments may be omitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FunctionPattern(Pattern);

impl FunctionPattern {
    /// Creates a pattern in the syntax of [`Pattern::found`].
    pub(crate) fn new(text: &str) -> Self {
        FunctionPattern(Pattern::found(&text.replace('…', "*")))
    }

    /// Returns whether a function name matches, with or without its template arguments.
    pub(crate) fn matches(&self, name: &str) -> bool {
        self.0.matches(name) || (name.contains('<') && self.0.matches(without_arguments(name, "")))
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
}
