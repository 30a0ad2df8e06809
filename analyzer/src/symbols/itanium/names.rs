//! Functions, variables, and what compilers make for them.

use super::operators;
use super::parser::Parser;
use super::{Id, Mark, Node};

impl Parser<'_> {
    /// `_Z` and an encoding.
    pub(super) fn mangled_name(&mut self, is_outermost: bool) -> Option<Id> {
        self.takes_text("_Z").then_some(())?;
        self.encoding(is_outermost)
    }

    pub(super) fn encoding(&mut self, is_outermost: bool) -> Option<Id> {
        self.nested(|parser| {
            if matches!(parser.peek(), b'G' | b'T') {
                return parser.special_name();
            }
            let name = parser.name()?;
            if matches!(parser.peek(), 0 | b'E') {
                return Some(name);
            }
            let function = parser.bare_function(parser.has_return_type(name))?;
            let entity = parser.without_marks(name);
            if !is_outermost && matches!(parser.tree.get(entity), Node::Local(..)) {
                parser.hide_return_type(function);
            }
            Some(parser.add(Node::Typed(name, function)))
        })
    }

    /// The return type of a function around something would look like the type of that.
    fn hide_return_type(&mut self, function: Id) {
        if let Node::Function(_, parameters) = self.tree.get(function) {
            let node = Node::Function(None, parameters.clone());
            self.replace(function, node);
        }
    }

    fn without_marks(&self, mut name: Id) -> Id {
        while let Node::Method(_, inner) = *self.tree.get(name) {
            name = inner;
        }
        name
    }

    /// Templates have the return type in their names, except where there is none.
    fn has_return_type(&self, name: Id) -> bool {
        match *self.tree.get(name) {
            Node::Local(_, entity) => self.has_return_type(entity),
            Node::Method(_, inner) => self.has_return_type(inner),
            Node::Template(name, _) => !self.returns_nothing(name),
            _ => false,
        }
    }

    fn returns_nothing(&self, name: Id) -> bool {
        match *self.tree.get(name) {
            Node::Member(_, last) | Node::Local(_, last) => self.returns_nothing(last),
            Node::Constructor(_) | Node::Destructor(_) | Node::Conversion(_) => true,
            _ => false,
        }
    }

    pub(super) fn name(&mut self) -> Option<Id> {
        self.nested(|parser| match parser.peek() {
            b'N' => parser.nested_name(),
            b'Z' => parser.local_name(),
            b'U' => parser.unqualified_name(),
            b'S' if parser.peek_at(1) != b't' => {
                let name = parser.substitution(false)?;
                parser.maybe_template(name, false)
            }
            byte => {
                let in_std = byte == b'S';
                parser.at += if in_std { 2 } else { 0 };
                let mut name = parser.unqualified_name()?;
                if in_std {
                    let std = parser.add(Node::Text("std"));
                    name = parser.add(Node::Member(std, name));
                }
                parser.maybe_template(name, true)
            }
        })
    }

    /// A name with the template arguments that follow it, if any.
    fn maybe_template(&mut self, name: Id, is_new: bool) -> Option<Id> {
        if self.peek() != b'I' {
            return Some(name);
        }
        if is_new {
            self.substitutions.push(name);
        }
        let arguments = self.template_arguments()?;
        Some(self.add(Node::Template(name, arguments)))
    }

    fn nested_name(&mut self) -> Option<Id> {
        self.expect(b'N')?;
        let mut marks = self.marks();
        marks.reverse();
        let by = match self.peek() {
            b'R' => Some(Mark::Lvalue),
            b'O' => Some(Mark::Rvalue),
            _ => None,
        };
        self.at += usize::from(by.is_some());
        let mut name = self.prefix()?;
        self.expect(b'E')?;
        for mark in marks.into_iter().chain(by) {
            name = self.add(Node::Method(mark, name));
        }
        Some(name)
    }

    /// Const, volatile and restrict, the outermost first.
    pub(super) fn marks(&mut self) -> Vec<Mark> {
        let mut marks = Vec::new();
        loop {
            let mark = match self.peek() {
                b'r' => Mark::Restrict,
                b'V' => Mark::Volatile,
                b'K' => Mark::Const,
                _ => return marks,
            };
            self.at += 1;
            marks.push(mark);
        }
    }

    fn prefix(&mut self) -> Option<Id> {
        let mut name: Option<Id> = None;
        loop {
            let byte = self.peek();
            if byte == b'E' {
                return name;
            }
            if byte == b'M' && name.is_some() {
                // A lambda in the initializer of a member.
                self.at += 1;
                continue;
            }
            let mut is_substitution = false;
            let next = match byte {
                b'I' => {
                    let template = name?;
                    let arguments = self.template_arguments()?;
                    let whole = self.add(Node::Template(template, arguments));
                    name = None;
                    whole
                }
                b'S' => {
                    is_substitution = true;
                    self.substitution(true)?
                }
                b'T' => self.template_parameter()?,
                b'D' if matches!(self.peek_at(1), b'T' | b't') => self.type_()?,
                _ => self.unqualified_name()?,
            };
            let whole = match name {
                Some(scope) => self.add(Node::Member(scope, next)),
                None => next,
            };
            name = Some(whole);
            if !is_substitution && self.peek() != b'E' {
                self.substitutions.push(whole);
            }
        }
    }

    fn local_name(&mut self) -> Option<Id> {
        self.expect(b'Z')?;
        let function = self.encoding(false)?;
        self.expect(b'E')?;
        let entity = if self.takes(b's') {
            self.discriminator()?;
            self.add(Node::Text("string literal"))
        } else {
            let argument = if self.takes(b'd') { Some(self.compact_number()?) } else { None };
            let entity = self.name()?;
            if !matches!(self.tree.get(entity), Node::Lambda(..) | Node::Unnamed(_)) {
                self.discriminator()?;
            }
            match argument {
                Some(number) => self.add(Node::DefaultArgument(entity, number)),
                None => entity,
            }
        };
        if let Node::Typed(_, function) = *self.tree.get(function) {
            self.hide_return_type(function);
        }
        Some(self.add(Node::Local(function, entity)))
    }

    pub(super) fn unqualified_name(&mut self) -> Option<Id> {
        let name = match self.peek() {
            b'0'..=b'9' => self.source_name()?,
            b'a'..=b'z' => {
                if self.peek() == b'o' && self.peek_at(1) == b'n' {
                    self.at += 2;
                }
                let is_literal = self.rest().starts_with("li");
                let operator = self.operator_name()?;
                match is_literal {
                    true => {
                        let suffix = self.source_name()?;
                        self.add(Node::Unary(operator, suffix))
                    }
                    false => operator,
                }
            }
            b'D' if self.peek_at(1) == b'C' => {
                self.at += 2;
                let mut names = Vec::new();
                while !self.takes(b'E') {
                    names.push(self.source_name()?);
                }
                self.add(Node::Binding(names))
            }
            b'C' | b'D' => self.constructor_or_destructor()?,
            b'L' => {
                self.at += 1;
                let name = self.source_name()?;
                self.discriminator()?;
                name
            }
            b'U' => match self.peek_at(1) {
                b'l' => self.lambda()?,
                b't' => {
                    self.at += 2;
                    let number = self.compact_number()?;
                    let unnamed = self.add(Node::Unnamed(number));
                    self.substitutions.push(unnamed);
                    unnamed
                }
                _ => return None,
            },
            _ => return None,
        };
        self.abi_tags(name)
    }

    fn lambda(&mut self) -> Option<Id> {
        self.takes_text("Ul").then_some(())?;
        let parameters = self.nested(Parser::parameters)?;
        self.expect(b'E')?;
        let number = self.compact_number()?;
        Some(self.add(Node::Lambda(parameters, number)))
    }

    fn constructor_or_destructor(&mut self) -> Option<Id> {
        let name = self.last_name?;
        let is_constructor = self.takes(b'C');
        if !is_constructor {
            self.expect(b'D')?;
            matches!(self.peek(), b'0' | b'1' | b'2' | b'4' | b'5').then_some(())?;
            self.at += 1;
            return Some(self.add(Node::Destructor(name)));
        }
        let is_inherited = self.takes(b'I');
        matches!(self.peek(), b'1'..=b'5').then_some(())?;
        self.at += 1;
        if is_inherited {
            self.type_()?;
        }
        Some(self.add(Node::Constructor(name)))
    }

    pub(super) fn operator_name(&mut self) -> Option<Id> {
        let code = [self.peek(), self.peek_at(1)];
        if code[0] == b'v' && code[1].is_ascii_digit() {
            self.at += 2;
            let name = self.source_name()?;
            return Some(self.add(Node::VendorOperator(name)));
        }
        if code == *b"cv" {
            self.at += 2;
            let was_conversion = std::mem::replace(&mut self.is_conversion, !self.is_expression);
            let kind = self.type_();
            let is_conversion = std::mem::replace(&mut self.is_conversion, was_conversion);
            let kind = kind?;
            return Some(self.add(if is_conversion { Node::Conversion(kind) } else { Node::Cast(kind) }));
        }
        let found = operators::find(&code)?;
        self.at += 2;
        Some(self.add(Node::Operator(found)))
    }

    /// Tables, thunks, guards.
    fn special_name(&mut self) -> Option<Id> {
        let code = [self.peek(), self.peek_at(1)];
        self.at += 2;
        let (prefix, of) = match &code {
            b"TV" => ("vtable for ", self.type_()?),
            b"TT" => ("VTT for ", self.type_()?),
            b"TI" => ("typeinfo for ", self.type_()?),
            b"TS" => ("typeinfo name for ", self.type_()?),
            b"TF" => ("typeinfo fn for ", self.type_()?),
            b"TJ" => ("java Class for ", self.type_()?),
            b"TA" => ("template parameter object for ", self.template_argument()?),
            b"TH" => ("TLS init function for ", self.name()?),
            b"TW" => ("TLS wrapper function for ", self.name()?),
            b"GV" => ("guard variable for ", self.name()?),
            b"GA" => ("hidden alias for ", self.encoding(false)?),
            b"GT" => {
                let is_safe = self.peek() == b'n';
                self.at += 1;
                let prefix = if is_safe { "non-transaction clone for " } else { "transaction clone for " };
                (prefix, self.encoding(false)?)
            }
            b"Th" => {
                self.at -= 1;
                self.call_offset()?;
                ("non-virtual thunk to ", self.encoding(false)?)
            }
            b"Tv" => {
                self.at -= 1;
                self.call_offset()?;
                ("virtual thunk to ", self.encoding(false)?)
            }
            b"Tc" => {
                self.call_offset()?;
                self.call_offset()?;
                ("covariant return thunk to ", self.encoding(false)?)
            }
            b"TC" => {
                let derived = self.type_()?;
                self.number()?;
                self.expect(b'_')?;
                let base = self.type_()?;
                return Some(self.add(Node::ConstructionVtable(base, derived)));
            }
            b"GR" => {
                let name = self.name()?;
                let number = self.number()?;
                return Some(self.add(Node::ReferenceTemporary(name, number)));
            }
            _ => return None,
        };
        Some(self.add(Node::Prefixed(prefix, of)))
    }

    fn call_offset(&mut self) -> Option<()> {
        let count = match self.peek() {
            b'h' => 1,
            b'v' => 2,
            _ => return None,
        };
        self.at += 1;
        for _ in 0..count {
            self.takes(b'n');
            self.number()?;
            self.expect(b'_')?;
        }
        Some(())
    }
}
