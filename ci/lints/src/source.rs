//! A Rust file, split into what is code and what is comment.

use proc_macro2::{TokenStream, TokenTree};
use std::ops::Range;
use std::str::FromStr;
use syn::spanned::Spanned;

/// A file that syn has parsed.
pub struct Source {
    /// Path from the repository's top folder.
    pub file: String,
    /// Content of the file.
    pub text: String,
    /// Items of the file, with their attributes.
    pub syntax: syn::File,
    /// All tokens; documentation comments are attributes in it.
    pub tokens: TokenStream,
    /// Byte ranges of items that are compiled for tests only.
    pub test_code: Vec<Range<usize>>,
    /// Offset of each newline.
    newlines: Vec<usize>,
}

/// A token that is not a group, with the bytes that it covers.
pub struct Leaf {
    /// The identifier, literal or punctuation.
    pub tree: TokenTree,
    /// Range of bytes of the token in the file.
    pub range: Range<usize>,
}

/// A line of a comment that is not documentation.
pub struct CommentLine<'a> {
    /// Line in the file, from 1.
    pub line: usize,
    /// The text from the comment's start to the end of the line.
    pub text: &'a str,
}

impl Source {
    /// Parses the content of a file.
    ///
    /// # Errors
    /// Text that is not Rust.
    pub fn parse(file: &str, text: String) -> Result<Source, String> {
        let tokens = TokenStream::from_str(&text).map_err(|e| format!("{file}: {e}"))?;
        let syntax = syn::parse2::<syn::File>(tokens.clone()).map_err(|e| format!("{file}: {e}"))?;
        let mut finder = TestCode::default();
        syn::visit::Visit::visit_file(&mut finder, &syntax);
        let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(offset, _)| offset).collect();
        Ok(Source { file: file.to_string(), text, syntax, tokens, test_code: finder.ranges, newlines })
    }

    /// Returns whether the file, or the byte in it, is compiled for tests only.
    pub fn is_test(&self, byte: usize) -> bool {
        self.file.ends_with("/tests.rs")
            || self.file.contains("/tests/")
            || self.file.starts_with("tests/")
            || self.test_code.iter().any(|range| range.contains(&byte))
    }

    /// Returns the line of a byte, from 1.
    pub fn line(&self, byte: usize) -> usize {
        1 + self.newlines.partition_point(|&newline| newline < byte)
    }

    /// Returns all tokens inside and outside of groups, in order.
    pub fn leaves(&self) -> Vec<Leaf> {
        let mut leaves = Vec::new();
        flatten(self.tokens.clone(), &mut leaves);
        leaves
    }

    /// Returns the lines of the comments that are not documentation: the text that no token covers.
    pub fn comments(&self) -> Vec<CommentLine<'_>> {
        let mut ranges = Vec::new();
        cover(self.tokens.clone(), &mut ranges);
        ranges.sort_by_key(|range| range.start);
        ranges.push(self.text.len()..self.text.len());
        let (mut comments, mut end) = (Vec::new(), 0);
        for range in ranges {
            if range.start > end {
                let mut at = end;
                for part in self.text[end..range.start].split_inclusive('\n') {
                    if let Some(column) = part.find("//").or_else(|| part.find("/*")) {
                        let text = part[column..].trim_end();
                        comments.push(CommentLine { line: self.line(at + column), text });
                    }
                    at += part.len();
                }
            }
            end = end.max(range.end);
        }
        comments
    }
}

fn flatten(tokens: TokenStream, leaves: &mut Vec<Leaf>) {
    for tree in tokens {
        match tree {
            TokenTree::Group(group) => flatten(group.stream(), leaves),
            tree => leaves.push(Leaf { range: tree.span().byte_range(), tree }),
        }
    }
}

/// Collects the bytes of tokens, and those of the delimiters of groups.
fn cover(tokens: TokenStream, ranges: &mut Vec<Range<usize>>) {
    for tree in tokens {
        match tree {
            TokenTree::Group(group) => {
                ranges.push(group.span_open().byte_range());
                // The tokens of a documentation comment all cover the whole comment.
                cover(group.stream(), ranges);
                ranges.push(group.span_close().byte_range());
            }
            tree => ranges.push(tree.span().byte_range()),
        }
    }
}

#[derive(Default)]
struct TestCode {
    ranges: Vec<Range<usize>>,
}

impl<'ast> syn::visit::Visit<'ast> for TestCode {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            _ => return syn::visit::visit_item(self, item),
        };
        if attributes.iter().any(is_test) {
            self.ranges.push(item.span().byte_range());
        } else {
            syn::visit::visit_item(self, item);
        }
    }
}

/// Returns whether an attribute is `#[cfg(test)]`, `#[test]` or a combination with `test`.
fn is_test(attribute: &syn::Attribute) -> bool {
    let name = attribute.path();
    if name.is_ident("test") {
        return true;
    }
    let syn::Meta::List(list) = &attribute.meta else { return false };
    let text = list.tokens.to_string();
    name.is_ident("cfg") && text.contains("test") && !text.contains("not")
}
