//! Expressions as the binutils write them, with parentheses around all operands but names.

use super::print::Printer;
use super::{Id, Literal, Node};

impl Printer<'_, '_> {
    pub(super) fn print_operand(&mut self, id: Id) -> Option<()> {
        let is_simple =
            matches!(self.node(id), Node::Text(_) | Node::Member(..) | Node::Braces(..) | Node::FunctionParameter(_));
        if is_simple {
            return self.print(id);
        }
        self.put("(")?;
        self.print(id)?;
        self.put(")")
    }

    fn print_operator(&mut self, operator: Id) -> Option<()> {
        match self.node(operator) {
            Node::Operator(found) => self.put(found.text),
            _ => self.print(operator),
        }
    }

    fn code(&self, operator: Id) -> &'static str {
        match *self.node(operator) {
            Node::Operator(found) => found.code,
            _ => "",
        }
    }

    pub(super) fn print_expression(&mut self, id: Id) -> Option<()> {
        match self.node(id) {
            Node::FunctionParameter(0) => self.put("this"),
            Node::FunctionParameter(number) => self.put(&format!("{{parm#{number}}}")),
            Node::Literal { kind, text, is_negative } => self.print_literal(*kind, text, *is_negative),
            Node::Nullary(operator) => self.print_operator(*operator),
            Node::Unary(operator, operand) => self.print_unary(*operator, *operand),
            Node::Postfix(operator, operand) => {
                self.print_operand(*operand)?;
                self.print_operator(*operator)
            }
            Node::Binary(operator, left, right) => self.print_binary(*operator, *left, *right),
            Node::Trinary(operator, first, second, third) => self.print_trinary(*operator, *first, *second, *third),
            Node::Braces(kind, values) => {
                if let Some(kind) = kind {
                    self.print(*kind)?;
                }
                self.put("{")?;
                self.print_list(values)?;
                self.put("}")
            }
            Node::VendorCall(name, arguments) => {
                self.print(*name)?;
                self.put("(")?;
                self.print(*arguments)?;
                self.put(")")
            }
            _ => None,
        }
    }

    fn print_unary(&mut self, operator: Id, operand: Id) -> Option<()> {
        let code = self.code(operator);
        match code {
            "sZ" => {
                let pack = self.find_pack(operand)?;
                let length = pack.map_or(0, |pack| self.pack_length(pack));
                return self.put_number(length);
            }
            "sP" => {
                let length = self.arguments_length(operand)?;
                return self.put_number(length);
            }
            // The literal operator of a suffix.
            "li" => {
                self.put("operator\"\" ")?;
                return self.print(operand);
            }
            _ => {}
        }
        let mut operand = operand;
        if let ("ad", Node::Typed(name, _)) = (code, self.node(operand))
            && matches!(self.node(*name), Node::Member(..))
        {
            operand = *name;
        }
        if let Node::Cast(kind) = *self.node(operator) {
            self.put("(")?;
            self.print(kind)?;
            self.put(")")?;
        } else {
            self.print_operator(operator)?;
        }
        match code {
            "gs" => self.print(operand),
            "st" => {
                self.put("(")?;
                self.print(operand)?;
                self.put(")")
            }
            _ => self.print_operand(operand),
        }
    }

    fn pack_length(&self, pack: Id) -> u64 {
        match self.node(pack) {
            Node::List(items) => items.len() as u64,
            _ => 0,
        }
    }

    /// Number of arguments, with packs expanded.
    fn arguments_length(&mut self, arguments: Id) -> Option<u64> {
        let Node::List(items) = self.node(arguments) else { return Some(0) };
        let mut length = 0;
        for &item in items {
            length += match *self.node(item) {
                Node::PackExpansion(pattern) => {
                    let pack = self.find_pack(pattern)?;
                    pack.map_or(0, |pack| self.pack_length(pack))
                }
                _ => 1,
            };
        }
        Some(length)
    }

    fn print_binary(&mut self, operator: Id, left: Id, right: Id) -> Option<()> {
        let code = self.code(operator);
        match code {
            "cc" | "dc" | "rc" | "sc" => {
                self.print_operator(operator)?;
                self.put("<")?;
                self.print(left)?;
                self.put(">(")?;
                self.print(right)?;
                return self.put(")");
            }
            "fl" | "fr" => {
                return self.with_whole_packs(|printer| {
                    printer.put(if code == "fl" { "(..." } else { "(" })?;
                    if code == "fl" {
                        printer.print_operator(left)?;
                        printer.print_operand(right)?;
                        return printer.put(")");
                    }
                    printer.print_operand(right)?;
                    printer.print_operator(left)?;
                    printer.put("...)")
                });
            }
            "di" | "dx" => {
                self.put(if code == "di" { "." } else { "[" })?;
                self.print(left)?;
                if code == "dx" {
                    self.put("]")?;
                }
                return self.print_designated(right);
            }
            _ => {}
        }
        // So that it does not seem to end the template's arguments.
        let is_greater = code == "gt";
        if is_greater {
            self.put("(")?;
        }
        match (code, self.node(left)) {
            ("cl", Node::Typed(name, _)) => self.print_operand(*name)?,
            _ => self.print_operand(left)?,
        }
        match code {
            "ix" => {
                self.put("[")?;
                self.print(right)?;
                self.put("]")?;
            }
            "cl" => self.print_operand(right)?,
            _ => {
                self.print_operator(operator)?;
                self.print_operand(right)?;
            }
        }
        if is_greater { self.put(")") } else { Some(()) }
    }

    fn print_designated(&mut self, value: Id) -> Option<()> {
        let is_nested = matches!(self.node(value), Node::Binary(operator, ..) | Node::Trinary(operator, ..)
            if matches!(self.code(*operator), "di" | "dx" | "dX"));
        if is_nested {
            return self.print(value);
        }
        self.put("=")?;
        self.print_operand(value)
    }

    fn with_whole_packs(&mut self, part: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        let element = self.element.take();
        let done = part(self);
        self.element = element;
        done
    }

    fn print_trinary(&mut self, operator: Id, first: Id, second: Id, third: Option<Id>) -> Option<()> {
        match (self.code(operator), third) {
            ("fL" | "fR", Some(third)) => self.with_whole_packs(|printer| {
                printer.put("(")?;
                printer.print_operand(second)?;
                printer.print_operator(first)?;
                printer.put("...")?;
                printer.print_operator(first)?;
                printer.print_operand(third)?;
                printer.put(")")
            }),
            ("dX", Some(third)) => {
                self.put("[")?;
                self.print(first)?;
                self.put(" ... ")?;
                self.print(second)?;
                self.put("]")?;
                self.print_designated(third)
            }
            ("qu", Some(third)) => {
                self.print_operand(first)?;
                self.print_operator(operator)?;
                self.print_operand(second)?;
                self.put(" : ")?;
                self.print_operand(third)
            }
            _ => {
                self.put("new ")?;
                if matches!(self.node(first), Node::List(placement) if !placement.is_empty()) {
                    self.print_operand(first)?;
                    self.put(" ")?;
                }
                self.print(second)?;
                third.map_or(Some(()), |third| self.print_operand(third))
            }
        }
    }

    fn print_literal(&mut self, kind: Id, text: &str, is_negative: bool) -> Option<()> {
        let sign = if is_negative { "-" } else { "" };
        let style = match *self.node(kind) {
            Node::Builtin(_, style) => style,
            _ => Literal::Cast,
        };
        match style {
            Literal::Suffix(suffix) => return self.put(&format!("{sign}{text}{suffix}")),
            Literal::Bool if !is_negative && text == "0" => return self.put("false"),
            Literal::Bool if !is_negative && text == "1" => return self.put("true"),
            _ => {}
        }
        self.put("(")?;
        self.print(kind)?;
        self.put(")")?;
        match style {
            Literal::Float => self.put(&format!("{sign}[{text}]")),
            _ => self.put(&format!("{sign}{text}")),
        }
    }
}
