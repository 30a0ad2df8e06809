//! Expressions in template arguments, bounds and decltypes.

use super::parser::Parser;
use super::{Id, Node};

impl Parser<'_> {
    pub(super) fn expression(&mut self) -> Option<Id> {
        let was_expression = std::mem::replace(&mut self.is_expression, true);
        let found = self.operand();
        self.is_expression = was_expression;
        found
    }

    fn operand(&mut self) -> Option<Id> {
        self.nested(Parser::operand_here)
    }

    fn operand_here(&mut self) -> Option<Id> {
        match (self.peek(), self.peek_at(1)) {
            (b'L', _) => self.literal(),
            (b'T', _) => self.template_parameter(),
            (b's', b'r') => {
                self.at += 2;
                if let Some(scope) = self.levels() {
                    let name = self.unqualified_name()?;
                    let member = self.add(Node::Member(scope, name));
                    return self.with_arguments(member);
                }
                let scope = self.type_()?;
                let name = self.unqualified_name()?;
                let name = self.with_arguments(name)?;
                Some(self.add(Node::Member(scope, name)))
            }
            (b's', b'p') => {
                self.at += 2;
                let pattern = self.operand()?;
                Some(self.add(Node::PackExpansion(pattern)))
            }
            (b'f', b'p') => {
                self.at += 2;
                let number = if self.takes(b'T') { 0 } else { self.compact_number()? + 1 };
                Some(self.add(Node::FunctionParameter(number)))
            }
            (b'0'..=b'9', _) | (b'o', b'n') => {
                if self.peek() == b'o' {
                    self.at += 2;
                }
                let name = self.unqualified_name()?;
                self.with_arguments(name)
            }
            (b'i' | b't', b'l') => {
                let has_type = self.peek() == b't';
                self.at += 2;
                let kind = if has_type { Some(self.type_()?) } else { None };
                let values = self.operands(b'E')?;
                Some(self.add(Node::Braces(kind, values)))
            }
            (b'u', _) => {
                self.at += 1;
                let name = self.source_name()?;
                let arguments = self.nested(Parser::template_arguments_here)?;
                Some(self.add(Node::VendorCall(name, arguments)))
            }
            _ => self.operation(),
        }
    }

    /// `3std9is_signedIT_EE`: names up to an `E`. gcc writes a type there, which has no end of its
    /// own.
    fn levels(&mut self) -> Option<Id> {
        let (at, known, last) = (self.at, self.substitutions.len(), self.last_name);
        let levels = self.try_levels();
        if levels.is_none() {
            self.at = at;
            self.substitutions.truncate(known);
            self.last_name = last;
        }
        levels
    }

    fn try_levels(&mut self) -> Option<Id> {
        let mut scope: Option<Id> = None;
        while self.peek().is_ascii_digit() {
            let name = self.source_name()?;
            let name = self.with_arguments(name)?;
            scope = Some(match scope {
                Some(scope) => self.add(Node::Member(scope, name)),
                None => name,
            });
        }
        self.expect(b'E')?;
        // What closes an argument is no end of a scope.
        scope.filter(|_| self.peek().is_ascii_digit())
    }

    fn with_arguments(&mut self, name: Id) -> Option<Id> {
        if self.peek() != b'I' {
            return Some(name);
        }
        let arguments = self.template_arguments()?;
        Some(self.add(Node::Template(name, arguments)))
    }

    fn operation(&mut self) -> Option<Id> {
        let operator = self.operator_name()?;
        let (code, count) = match *self.tree.get(operator) {
            Node::Operator(found) => (found.code, found.operands),
            Node::Cast(_) => ("", 1),
            _ => return None,
        };
        match count {
            0 => Some(self.add(Node::Nullary(operator))),
            1 => self.unary(operator, code),
            2 => self.binary(operator, code),
            _ => self.trinary(operator, code),
        }
    }

    fn unary(&mut self, operator: Id, code: &str) -> Option<Id> {
        let is_cast = matches!(self.tree.get(operator), Node::Cast(_));
        if code == "st" {
            let kind = self.type_()?;
            return Some(self.add(Node::Unary(operator, kind)));
        }
        if matches!(code, "pp" | "mm") {
            let is_prefix = self.takes(b'_');
            let operand = self.operand()?;
            let node = if is_prefix { Node::Unary(operator, operand) } else { Node::Postfix(operator, operand) };
            return Some(self.add(node));
        }
        let operand = if is_cast && self.takes(b'_') {
            let values = self.operands(b'E')?;
            self.add(Node::List(values))
        } else if code == "sP" {
            self.nested(Parser::template_arguments_here)?
        } else {
            self.operand()?
        };
        Some(self.add(Node::Unary(operator, operand)))
    }

    fn binary(&mut self, operator: Id, code: &str) -> Option<Id> {
        let left = match code {
            "cc" | "dc" | "rc" | "sc" => self.type_()?,
            "fl" | "fr" => self.operator_name()?,
            "di" => self.unqualified_name()?,
            _ => self.operand()?,
        };
        let right = match code {
            "cl" => {
                let values = self.operands(b'E')?;
                self.add(Node::List(values))
            }
            "dt" | "pt" if !self.rest().starts_with("gs") && !self.rest().starts_with("sr") => {
                let name = self.unqualified_name()?;
                self.with_arguments(name)?
            }
            _ => self.operand()?,
        };
        Some(self.add(Node::Binary(operator, left, right)))
    }

    fn trinary(&mut self, operator: Id, code: &str) -> Option<Id> {
        let (first, second, third) = match code {
            "fL" | "fR" => (self.operator_name()?, self.operand()?, Some(self.operand()?)),
            "nw" | "na" => {
                let placement = self.operands(b'_')?;
                let placement = self.add(Node::List(placement));
                let kind = self.type_()?;
                let initial = if self.takes(b'E') {
                    None
                } else if self.takes_text("pi") {
                    let values = self.operands(b'E')?;
                    Some(self.add(Node::List(values)))
                } else if self.rest().starts_with("il") {
                    Some(self.operand()?)
                } else {
                    return None;
                };
                (placement, kind, initial)
            }
            _ => (self.operand()?, self.operand()?, Some(self.operand()?)),
        };
        Some(self.add(Node::Trinary(operator, first, second, third)))
    }

    /// Expressions up to a terminator.
    fn operands(&mut self, end: u8) -> Option<Vec<Id>> {
        let mut found = Vec::new();
        while !self.takes(end) {
            found.push(self.operand()?);
        }
        Some(found)
    }

    /// `L`, a type and a value, or a mangled name.
    pub(super) fn literal(&mut self) -> Option<Id> {
        self.expect(b'L')?;
        if matches!((self.peek(), self.peek_at(1)), (b'_', _) | (b'Z', _)) {
            if self.peek() == b'Z' {
                self.at += 1;
                let found = self.encoding(false)?;
                self.expect(b'E')?;
                return Some(found);
            }
            let found = self.nested(|parser| parser.mangled_name(false))?;
            self.expect(b'E')?;
            return Some(found);
        }
        let kind = self.type_()?;
        if matches!(self.tree.get(kind), Node::Builtin("decltype(nullptr)", _)) && self.takes(b'E') {
            return Some(kind);
        }
        let is_negative = self.takes(b'n');
        let length = self.rest().find('E')?;
        let text = &self.rest()[..length];
        self.at += length + 1;
        Some(self.add(Node::Literal { kind, text, is_negative }))
    }
}
