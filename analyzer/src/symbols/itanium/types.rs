//! Types, template arguments and function types.

use super::parser::Parser;
use super::{Id, Literal, Mark, Node};

/// The built-in types with a letter of their own, from `a` to `z`.
const fn builtin(letter: u8) -> Option<(&'static str, Literal)> {
    use Literal::{Bool, Cast, Float, Suffix, Void};
    Some(match letter {
        b'a' => ("signed char", Cast),
        b'b' => ("bool", Bool),
        b'c' => ("char", Cast),
        b'd' => ("double", Float),
        b'e' => ("long double", Float),
        b'f' => ("float", Float),
        b'g' => ("__float128", Float),
        b'h' => ("unsigned char", Cast),
        b'i' => ("int", Suffix("")),
        b'j' => ("unsigned int", Suffix("u")),
        b'l' => ("long", Suffix("l")),
        b'm' => ("unsigned long", Suffix("ul")),
        b'n' => ("__int128", Cast),
        b'o' => ("unsigned __int128", Cast),
        b's' => ("short", Cast),
        b't' => ("unsigned short", Cast),
        b'v' => ("void", Void),
        b'w' => ("wchar_t", Cast),
        b'x' => ("long long", Suffix("ll")),
        b'y' => ("unsigned long long", Suffix("ull")),
        b'z' => ("...", Cast),
        _ => return None,
    })
}

/// The built-in types behind a `D`.
const fn later_builtin(letter: u8) -> Option<(&'static str, Literal)> {
    Some(match letter {
        b'a' => ("auto", Literal::Cast),
        b'c' => ("decltype(auto)", Literal::Cast),
        b'f' => ("decimal32", Literal::Cast),
        b'd' => ("decimal64", Literal::Cast),
        b'e' => ("decimal128", Literal::Cast),
        b'h' => ("half", Literal::Float),
        b'n' => ("decltype(nullptr)", Literal::Cast),
        b's' => ("char16_t", Literal::Cast),
        b'u' => ("char8_t", Literal::Cast),
        b'i' => ("char32_t", Literal::Cast),
        _ => return None,
    })
}

impl Parser<'_> {
    pub(super) fn type_(&mut self) -> Option<Id> {
        self.nested(Parser::type_here)
    }

    fn type_here(&mut self) -> Option<Id> {
        let byte = self.peek();
        if let Some((name, literal)) = builtin(byte) {
            self.at += 1;
            return Some(self.add(Node::Builtin(name, literal)));
        }
        if matches!(byte, b'r' | b'V' | b'K') || byte == b'D' && matches!(self.peek_at(1), b'x' | b'o' | b'O' | b'w') {
            return self.marked_type();
        }
        let found = match byte {
            b'u' => {
                self.at += 1;
                let name = self.source_name()?;
                match self.peek() {
                    b'I' => {
                        let arguments = self.template_arguments()?;
                        self.add(Node::Template(name, arguments))
                    }
                    _ => name,
                }
            }
            b'F' => self.function_type()?,
            b'0'..=b'9' | b'N' | b'Z' => self.name()?,
            b'A' => self.array_type()?,
            b'M' => {
                self.at += 1;
                let class = self.type_()?;
                let member = self.type_()?;
                self.add(Node::MemberPointer(class, member))
            }
            b'T' => self.parameter_type()?,
            b'S' => {
                let next = self.peek_at(1);
                if next.is_ascii_digit() || next == b'_' || next.is_ascii_uppercase() {
                    let found = self.substitution(false)?;
                    if self.peek() != b'I' {
                        return Some(found);
                    }
                    let arguments = self.template_arguments()?;
                    self.add(Node::Template(found, arguments))
                } else {
                    let is_abbreviation = next != b't';
                    let found = self.name()?;
                    // The abbreviation alone is no new candidate.
                    if is_abbreviation && matches!(self.tree.get(found), Node::Text(_)) {
                        return Some(found);
                    }
                    found
                }
            }
            b'O' | b'P' | b'R' | b'C' | b'G' => {
                self.at += 1;
                let inner = self.type_()?;
                self.add(match byte {
                    b'O' => Node::RvalueReference(inner),
                    b'P' => Node::Pointer(inner),
                    b'R' => Node::Reference(inner),
                    b'C' => Node::Complex(inner),
                    _ => Node::Imaginary(inner),
                })
            }
            b'U' if matches!(self.peek_at(1), b'l' | b't') => self.name()?,
            b'U' => {
                self.at += 1;
                let mut mark = self.source_name()?;
                if self.peek() == b'I' {
                    let arguments = self.template_arguments()?;
                    mark = self.add(Node::Template(mark, arguments));
                }
                let inner = self.type_()?;
                self.add(Node::VendorMarked(inner, mark))
            }
            b'D' => {
                let (found, is_candidate) = self.later_type()?;
                if !is_candidate {
                    return Some(found);
                }
                found
            }
            _ => return None,
        };
        self.substitutions.push(found);
        Some(found)
    }

    /// A template parameter, perhaps one that is a template itself.
    fn parameter_type(&mut self) -> Option<Id> {
        let parameter = self.template_parameter()?;
        if self.peek() != b'I' {
            return Some(parameter);
        }
        if !self.is_conversion {
            self.substitutions.push(parameter);
            let arguments = self.template_arguments()?;
            return Some(self.add(Node::Template(parameter, arguments)));
        }
        // `operator T<int>()` or `operator T()` of a template: arguments follow twice, or once.
        let (at, known, last) = (self.at, self.substitutions.len(), self.last_name);
        let arguments = self.template_arguments();
        if let Some(arguments) = arguments
            && self.peek() == b'I'
        {
            self.substitutions.push(parameter);
            return Some(self.add(Node::Template(parameter, arguments)));
        }
        self.at = at;
        self.substitutions.truncate(known);
        self.last_name = last;
        Some(parameter)
    }

    /// A type with qualifiers, or a function type with what applies to its object.
    fn marked_type(&mut self) -> Option<Id> {
        let mut marks = Vec::new();
        loop {
            let mark = match (self.peek(), self.peek_at(1)) {
                (b'r', _) => Mark::Restrict,
                (b'V', _) => Mark::Volatile,
                (b'K', _) => Mark::Const,
                (b'D', b'x') => Mark::TransactionSafe,
                (b'D', b'o') => Mark::Noexcept(None),
                (b'D', b'O') => {
                    self.at += 2;
                    let condition = self.expression()?;
                    self.expect(b'E')?;
                    marks.push(Mark::Noexcept(Some(condition)));
                    continue;
                }
                (b'D', b'w') => {
                    self.at += 2;
                    let thrown = self.parameters()?;
                    self.expect(b'E')?;
                    let list = self.add(Node::List(thrown));
                    marks.push(Mark::Throw(list));
                    continue;
                }
                _ => break,
            };
            self.at += if self.peek() == b'D' { 2 } else { 1 };
            marks.push(mark);
        }
        let is_function = self.peek() == b'F';
        let mut found = if is_function { self.function_type()? } else { self.type_()? };
        // The qualifier of the reference has become part of the function type.
        let reference = match *self.tree.get(found) {
            Node::Method(mark @ (Mark::Lvalue | Mark::Rvalue), inner) if is_function => {
                found = inner;
                Some(mark)
            }
            _ => None,
        };
        for mark in marks.into_iter().rev() {
            let is_of_method = is_function || !matches!(mark, Mark::Const | Mark::Volatile | Mark::Restrict);
            found = self.add(if is_of_method { Node::Method(mark, found) } else { Node::Marked(mark, found) });
        }
        if let Some(mark) = reference {
            found = self.add(Node::Method(mark, found));
        }
        self.substitutions.push(found);
        Some(found)
    }

    /// A type behind `D`, and whether substitutions can refer to it.
    fn later_type(&mut self) -> Option<(Id, bool)> {
        let letter = self.peek_at(1);
        if let Some((name, literal)) = later_builtin(letter) {
            self.at += 2;
            return Some((self.add(Node::Builtin(name, literal)), false));
        }
        self.at += 2;
        match letter {
            b'T' | b't' => {
                let expression = self.expression()?;
                self.expect(b'E')?;
                Some((self.add(Node::Decltype(expression)), true))
            }
            b'p' => {
                let pattern = self.type_()?;
                Some((self.add(Node::PackExpansion(pattern)), true))
            }
            b'v' => {
                let bound = if self.takes(b'_') { self.expression()? } else { self.digits()? };
                self.expect(b'_')?;
                let element = self.type_()?;
                Some((self.add(Node::Vector(bound, element)), true))
            }
            b'F' => {
                let start = self.at;
                let bits = self.number()?;
                let (known, is_known) = match (self.peek(), bits) {
                    (b'b', 16) => ("std::bfloat16_t", true),
                    (b'x', 32) => ("_Float32x", true),
                    (b'x', 64) => ("_Float64x", true),
                    (b'_', 16) => ("_Float16", true),
                    (b'_', 32) => ("_Float32", true),
                    (b'_', 64) => ("_Float64", true),
                    (b'_', 128) => ("_Float128", true),
                    _ => ("", self.at == start),
                };
                (is_known && !known.is_empty()).then_some(())?;
                self.at += 1;
                Some((self.add(Node::Builtin(known, Literal::Float)), false))
            }
            _ => None,
        }
    }

    fn digits(&mut self) -> Option<Id> {
        let digits = self.rest().bytes().take_while(u8::is_ascii_digit).count();
        let text = &self.rest()[..digits];
        self.at += digits;
        (digits > 0).then(|| self.add(Node::Text(text)))
    }

    fn array_type(&mut self) -> Option<Id> {
        self.expect(b'A')?;
        let bound = match self.peek() {
            b'_' => None,
            b'0'..=b'9' => Some(self.digits()?),
            _ => Some(self.expression()?),
        };
        self.expect(b'_')?;
        let element = self.type_()?;
        Some(self.add(Node::Array(bound, element)))
    }

    fn function_type(&mut self) -> Option<Id> {
        self.expect(b'F')?;
        self.takes(b'Y');
        let mut function = self.bare_function(true)?;
        if matches!(self.peek(), b'R' | b'O') {
            let mark = if self.peek() == b'R' { Mark::Lvalue } else { Mark::Rvalue };
            self.at += 1;
            function = self.add(Node::Method(mark, function));
        }
        self.expect(b'E')?;
        Some(function)
    }

    pub(super) fn bare_function(&mut self, has_return_type: bool) -> Option<Id> {
        let has_return_type = self.takes(b'J') || has_return_type;
        let returned = if has_return_type { Some(self.type_()?) } else { None };
        let parameters = self.parameters()?;
        Some(self.add(Node::Function(returned, parameters)))
    }

    /// At least one type; `void` alone is none.
    pub(super) fn parameters(&mut self) -> Option<Vec<Id>> {
        let mut found = Vec::new();
        loop {
            let byte = self.peek();
            if matches!(byte, 0 | b'E' | b'.') || matches!(byte, b'R' | b'O') && self.peek_at(1) == b'E' {
                break;
            }
            found.push(self.type_()?);
        }
        let first = *found.first()?;
        if found.len() == 1 && matches!(self.tree.get(first), Node::Builtin(_, Literal::Void)) {
            found.clear();
        }
        Some(found)
    }

    pub(super) fn template_parameter(&mut self) -> Option<Id> {
        self.expect(b'T')?;
        let number = self.compact_number()?;
        Some(self.add(Node::TemplateParameter(number)))
    }

    pub(super) fn template_arguments(&mut self) -> Option<Id> {
        matches!(self.peek(), b'I' | b'J').then_some(())?;
        self.at += 1;
        self.nested(Parser::template_arguments_here)
    }

    /// The arguments up to their `E`. They do not name constructors.
    pub(super) fn template_arguments_here(&mut self) -> Option<Id> {
        let last = self.last_name;
        let mut found = Vec::new();
        while !self.takes(b'E') {
            found.push(self.template_argument()?);
        }
        self.last_name = last;
        Some(self.add(Node::List(found)))
    }

    pub(super) fn template_argument(&mut self) -> Option<Id> {
        match self.peek() {
            b'X' => {
                self.at += 1;
                let found = self.expression()?;
                self.expect(b'E')?;
                Some(found)
            }
            b'L' => self.literal(),
            b'I' | b'J' => self.template_arguments(),
            _ => self.type_(),
        }
    }
}
