//! Tuples of three and more, whose members have no names, in fields and in public signatures.

use crate::Finding;
use crate::source::Source;
use syn::spanned::Spanned;
use syn::visit::Visit;

/// Checks fields of structs and enums, type aliases, and signatures of public functions.
pub fn check(source: &Source) -> Vec<Finding> {
    let mut visitor = Visitor { source, findings: Vec::new() };
    visitor.visit_file(&source.syntax);
    visitor.findings
}

struct Visitor<'a> {
    source: &'a Source,
    findings: Vec<Finding>,
}

impl Visitor<'_> {
    fn judge(&mut self, ty: &syn::Type, what: &str) {
        let mut widest = Widest::default();
        widest.visit_type(ty);
        let span = ty.span();
        if widest.members >= 3 && !self.source.is_test(span.byte_range().start) {
            let text = format!("{what} has a tuple of {}: name its members", widest.members);
            let line = span.start().line;
            self.findings.push(Finding { file: self.source.file.clone(), lint: "wide-tuple", line, text });
        }
    }

    fn signature(&mut self, visibility: &syn::Visibility, signature: &syn::Signature) {
        if matches!(visibility, syn::Visibility::Inherited) {
            return;
        }
        let what = signature.ident.to_string();
        for input in &signature.inputs {
            if let syn::FnArg::Typed(input) = input {
                self.judge(&input.ty, &what);
            }
        }
        if let syn::ReturnType::Type(_, output) = &signature.output {
            self.judge(output, &what);
        }
    }
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.signature(&item.vis, &item.sig);
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.signature(&item.vis, &item.sig);
        syn::visit::visit_impl_item_fn(self, item);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        let what = field.ident.as_ref().map_or_else(|| "a field".to_string(), ToString::to_string);
        self.judge(&field.ty, &what);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.judge(&item.ty, &item.ident.to_string());
    }
}

/// Members of the widest tuple inside a type.
#[derive(Default)]
struct Widest {
    members: usize,
}

impl<'ast> Visit<'ast> for Widest {
    fn visit_type_tuple(&mut self, tuple: &'ast syn::TypeTuple) {
        self.members = self.members.max(tuple.elems.len());
        syn::visit::visit_type_tuple(self, tuple);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: &str) -> usize {
        check(&Source::parse("a/src/b.rs", code.to_string()).unwrap()).len()
    }

    #[test]
    fn wide_tuples_are_found_where_others_see_them() {
        assert_eq!(of("struct A { b: Vec<(u8, u8, u8)> }"), 1);
        assert_eq!(of("pub fn f() -> (u8, u8, u8) { g() }"), 1);
        assert_eq!(of("fn f() -> (u8, u8, u8) { g() }"), 0);
        assert_eq!(of("struct A { b: (u8, u8) }"), 0);
    }
}
