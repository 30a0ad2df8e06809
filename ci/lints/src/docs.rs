//! Documentation comments: full sentences, and an `# Errors` section where a function can fail.

use crate::Finding;
use crate::source::Source;
use proc_macro2::{TokenStream, TokenTree};
use std::path::Path;
use syn::spanned::Spanned;
use syn::visit::Visit;

/// First words that need the sentence above to be understood.
const DANGLING: &[&str] =
    &["Their", "Its", "Whose", "Of", "And", "Or", "But", "Such", "Likewise", "Same", "Also", "So"];

/// Checks the documentation of all items, fields and variants outside of test code.
pub fn check(source: &Source) -> Vec<Finding> {
    let mut visitor = Visitor { source, findings: Vec::new(), is_trait_impl: false, is_help: false };
    visitor.visit_file(&source.syntax);
    visitor.findings
}

/// Macros whose comments are help texts of the command line.
const HELP_MACROS: &[&str] = &["commands"];

struct Visitor<'a> {
    source: &'a Source,
    findings: Vec<Finding>,
    is_trait_impl: bool,
    /// The comments inside the item are help texts of the command line, which have no full stop.
    is_help: bool,
}

impl Visitor<'_> {
    fn report(&mut self, lint: &'static str, span: proc_macro2::Span, text: String) {
        let line = span.start().line;
        self.findings.push(Finding { file: self.source.file.clone(), lint, line, text });
    }

    fn function(&mut self, attributes: &[syn::Attribute], is_public: bool, signature: &syn::Signature) {
        if !is_public || self.is_trait_impl || self.source.is_test(signature.span().byte_range().start) {
            return;
        }
        if !has_users(&self.source.file) {
            return;
        }
        let syn::ReturnType::Type(_, output) = &signature.output else { return };
        let is_result = matches!(&**output, syn::Type::Path(path)
            if path.path.segments.last().is_some_and(|segment| segment.ident == "Result"));
        if is_result && !text(attributes).contains("# Errors") {
            self.report("errors-section", signature.ident.span(), format!("{} has no '# Errors'", signature.ident));
        }
    }
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.attrs, is_public(&item.vis), &item.sig);
        self.first_line(&item.attrs);
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.is_trait_impl = item.trait_.is_some();
        syn::visit::visit_item_impl(self, item);
        self.is_trait_impl = false;
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.attrs, is_public(&item.vis), &item.sig);
        self.first_line(&item.attrs);
        syn::visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.first_line(&item.attrs);
        syn::visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.is_help = makes_help(&item.attrs);
        self.first_line(&item.attrs);
        syn::visit::visit_item_struct(self, item);
        self.is_help = false;
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.is_help = makes_help(&item.attrs);
        self.first_line(&item.attrs);
        syn::visit::visit_item_enum(self, item);
        self.is_help = false;
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.first_line(&item.attrs);
        syn::visit::visit_item_const(self, item);
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.first_line(&item.attrs);
        syn::visit::visit_item_static(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.first_line(&item.attrs);
        syn::visit::visit_item_type(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.first_line(&item.attrs);
        syn::visit::visit_item_trait(self, item);
    }

    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        self.first_line(&item.attrs);
        if HELP_MACROS.iter().any(|name| item.mac.path.is_ident(name)) {
            return;
        }
        let mut comments = Vec::new();
        comments_of(item.mac.tokens.clone(), &mut comments);
        for (span, comment) in comments {
            self.judge(span, &comment);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        self.first_line(&field.attrs);
        syn::visit::visit_field(self, field);
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.first_line(&variant.attrs);
        syn::visit::visit_variant(self, variant);
    }
}

impl Visitor<'_> {
    /// Judges the first paragraph of a documentation comment, where there is one.
    fn first_line(&mut self, attributes: &[syn::Attribute]) {
        let Some(first) = attributes.iter().find(|attribute| attribute.path().is_ident("doc")) else { return };
        self.judge(first.span(), &text(attributes));
    }

    /// Judges the first paragraph of a documentation comment that begins at `span`.
    fn judge(&mut self, span: proc_macro2::Span, comment: &str) {
        if self.source.is_test(span.byte_range().start) {
            return;
        }
        let paragraph: String =
            comment.trim().lines().take_while(|line| !line.trim().is_empty()).collect::<Vec<_>>().join(" ");
        if let Some(fault) = fault(&paragraph, self.is_help) {
            self.report("doc-fragment", span, format!("{fault}: '{}'", shorten(&paragraph)));
        }
    }
}

/// Collects the documentation comments in the tokens of a macro, whose items syn does not parse.
fn comments_of(tokens: TokenStream, comments: &mut Vec<(proc_macro2::Span, String)>) {
    let mut is_open = false;
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let next = tokens.peek().and_then(doc_line).filter(|_| is_hash(&token));
        match (next, token) {
            (Some(line), token) => {
                tokens.next();
                match comments.last_mut().filter(|_| is_open) {
                    Some((_, comment)) => *comment += &format!("\n{line}"),
                    None => comments.push((token.span(), line)),
                }
                is_open = true;
            }
            (None, TokenTree::Group(group)) => {
                is_open = false;
                comments_of(group.stream(), comments);
            }
            (None, _) => is_open = false,
        }
    }
}

fn is_hash(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == '#')
}

/// Returns the line of a comment from the group `[doc = "…"]`.
fn doc_line(token: &TokenTree) -> Option<String> {
    let TokenTree::Group(group) = token else { return None };
    let attribute: syn::MetaNameValue = syn::parse2(group.stream()).ok().filter(|_| is_doc(group.stream()))?;
    match attribute.value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(line), .. }) => Some(line.value()),
        _ => None,
    }
}

fn is_doc(tokens: TokenStream) -> bool {
    matches!(tokens.into_iter().next(), Some(TokenTree::Ident(name)) if name == "doc")
}

/// Returns what keeps a paragraph from being a sentence that makes sense alone.
fn fault(paragraph: &str, is_help: bool) -> Option<&'static str> {
    let mut rest = paragraph.split_whitespace();
    let first = rest.next()?;
    if is_help {
        return None;
    }
    if rest.count() < 3 {
        return Some("fewer than four words");
    }
    if DANGLING.contains(&first.trim_end_matches([',', ':'])) {
        return Some("needs the sentence above it");
    }
    let end = paragraph.trim_end_matches(['`', ')', '*', '"']);
    (!end.ends_with(['.', ':', '!', '?', '…'])).then_some("no full stop")
}

/// Returns whether the file belongs to a library. Nothing of a command is public.
fn has_users(file: &str) -> bool {
    file.split_once("/src/").is_none_or(|(folder, _)| !Path::new(folder).join("src/main.rs").exists())
}

/// Returns whether clap makes help texts from the comments of the item's members.
fn makes_help(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("derive")).any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        let names = list.tokens.to_string();
        names.split([',', ' ']).any(|name| matches!(name, "Args" | "Parser" | "Subcommand" | "ValueEnum"))
    })
}

fn shorten(text: &str) -> String {
    text.chars().take(50).collect()
}

fn is_public(visibility: &syn::Visibility) -> bool {
    matches!(visibility, syn::Visibility::Public(_))
}

/// Returns the text of a documentation comment.
fn text(attributes: &[syn::Attribute]) -> String {
    let mut text = String::new();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("doc")) {
        let syn::Meta::NameValue(value) = &attribute.meta else { continue };
        if let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(line), .. }) = &value.value {
            text += line.value().trim();
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: &str) -> Vec<&'static str> {
        let source = Source::parse("a/src/b.rs", code.to_string()).unwrap();
        check(&source).iter().map(|finding| finding.lint).collect()
    }

    #[test]
    fn fragments_are_found() {
        assert_eq!(of("struct A {\n    /// Their bytes.\n    b: u64,\n}"), ["doc-fragment"]);
        assert_eq!(of("/// Whose turn it is next.\nfn f() {}"), ["doc-fragment"]);
        assert_eq!(of("/// Number of entries of the queue.\nfn f() {}"), [""; 0]);
        assert_eq!(of("#[derive(Args)]\nstruct A {\n    /// Only these\n    #[arg(long)]\n    b: u64,\n}"), [""; 0]);
    }

    #[test]
    fn public_functions_that_fail_name_their_errors() {
        assert_eq!(
            of("/// Reads the first of all bytes.\npub fn f() -> io::Result<u8> { todo() }"),
            ["errors-section"]
        );
        assert_eq!(
            of("/// Reads the first byte.\n///\n/// # Errors\n/// None.\npub fn f() -> Result<u8, E> { g() }"),
            [""; 0]
        );
    }
}
