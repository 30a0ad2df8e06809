//! The two halves of a type.

use super::print::Printer;
use super::{Id, Mark, Node};

/// What a pointer must put into parentheses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Function,
    Array,
    Other,
}

/// What a reference prints: its sign, and of what. `& &&` is `&`.
struct Target {
    sign: &'static str,
    inner: Id,
    scope: Option<usize>,
}

impl Printer<'_, '_> {
    pub(super) fn left(&mut self, id: Id) -> Option<()> {
        self.nested(id, |printer| printer.left_here(id))
    }

    pub(super) fn right(&mut self, id: Id) -> Option<()> {
        self.nested(id, |printer| printer.right_here(id))
    }

    fn left_here(&mut self, id: Id) -> Option<()> {
        match *self.node(id) {
            Node::Marked(..) => self.left_marked(id, Vec::new()),
            Node::Method(_, inner) => self.left(inner),
            Node::Pointer(inner) => {
                self.left_of_sign(inner, false)?;
                self.put("*")
            }
            Node::Complex(inner) | Node::Imaginary(inner) => {
                self.left_of_sign(inner, true)?;
                self.put(if matches!(self.node(id), Node::Complex(_)) { " _Complex" } else { " _Imaginary" })
            }
            Node::Reference(_) | Node::RvalueReference(_) => {
                let Target { sign, inner, scope } = self.target(id)?;
                self.in_scope(scope, |printer| {
                    printer.left_of_sign(inner, false)?;
                    printer.put(sign)
                })
            }
            Node::VendorMarked(inner, mark) => {
                self.left_of_sign(inner, true)?;
                self.put(" ")?;
                self.print(mark)
            }
            Node::Vector(bound, element) => {
                self.left(element)?;
                self.put(" __vector(")?;
                self.print(bound)?;
                self.put(")")
            }
            Node::MemberPointer(class, member) => {
                self.left_of_sign(member, true)?;
                if !self.ends_with(b'(') {
                    self.put(" ")?;
                }
                self.print(class)?;
                self.put("::*")
            }
            Node::Array(_, element) => self.left(element),
            Node::Function(Some(returned), _) => {
                self.left(returned)?;
                if self.has_right(returned)? { Some(()) } else { self.put(" ") }
            }
            Node::Function(None, _) => Some(()),
            Node::TemplateParameter(number) if self.lambdas > 0 => self.put(&format!("auto:{}", number + 1)),
            Node::TemplateParameter(number) => {
                let argument = self.argument(number)?;
                self.in_scope(self.outer_scope(), |printer| printer.left(argument))
            }
            Node::PackExpansion(pattern) => self.print_pack(pattern),
            _ => self.print_name(id),
        }
    }

    fn right_here(&mut self, id: Id) -> Option<()> {
        match *self.node(id) {
            Node::Marked(_, inner) => match self.shape(inner)? {
                Shape::Function => {
                    self.put(")")?;
                    self.right(inner)
                }
                _ => self.right(inner),
            },
            Node::Method(..) => {
                let (mut function, mut marks) = (id, Vec::new());
                while let Node::Method(mark, inner) = *self.node(function) {
                    marks.insert(0, mark);
                    function = inner;
                }
                if matches!(self.node(function), Node::Function(..)) {
                    return self.function_right(function, &marks);
                }
                self.right(function)?;
                marks.into_iter().try_for_each(|mark| self.print_mark(mark))
            }
            Node::Pointer(inner)
            | Node::Complex(inner)
            | Node::Imaginary(inner)
            | Node::VendorMarked(inner, _)
            | Node::MemberPointer(_, inner) => self.right_of_sign(inner),
            Node::Reference(_) | Node::RvalueReference(_) => {
                let Target { inner, scope, .. } = self.target(id)?;
                self.in_scope(scope, |printer| printer.right_of_sign(inner))
            }
            Node::Array(..) => self.right_array(id, true),
            Node::Vector(_, element) => self.right(element),
            Node::Function(..) => self.function_right(id, &[]),
            Node::TemplateParameter(number) if self.lambdas == 0 => {
                let argument = self.argument(number)?;
                self.in_scope(self.outer_scope(), |printer| printer.right(argument))
            }
            _ => Some(()),
        }
    }

    /// Prints the left half of what a sign such as `*` applies to, and the parenthesis before it.
    fn left_of_sign(&mut self, inner: Id, is_word: bool) -> Option<()> {
        self.left(inner)?;
        match self.shape(inner)? {
            Shape::Function => {
                let needs_space = is_word || !self.ends_with(b'(') && !self.ends_with(b'*');
                if needs_space && !self.ends_with(b' ') {
                    self.put(" ")?;
                }
                self.put("(")
            }
            Shape::Array => self.put(" ("),
            Shape::Other => Some(()),
        }
    }

    fn right_of_sign(&mut self, inner: Id) -> Option<()> {
        if self.shape(inner)? != Shape::Other {
            self.put(")")?;
        }
        self.right(inner)
    }

    /// Prints const and volatile once each. Those of an array belong to its elements.
    fn left_marked(&mut self, id: Id, mut marks: Vec<Mark>) -> Option<()> {
        self.visit()?;
        match *self.node(id) {
            Node::Marked(mark, inner) => {
                if !marks.contains(&mark) {
                    marks.push(mark);
                }
                self.nested(inner, |printer| printer.left_marked(inner, marks))
            }
            Node::Array(_, element) => self.nested(element, |printer| printer.left_marked(element, marks)),
            Node::TemplateParameter(number) if self.lambdas == 0 => {
                let argument = self.argument(number)?;
                self.in_scope(self.outer_scope(), |printer| {
                    printer.nested(argument, |printer| printer.left_marked(argument, marks))
                })
            }
            _ => {
                self.left_of_sign_unless_array(id)?;
                marks.into_iter().rev().try_for_each(|mark| self.print_mark(mark))
            }
        }
    }

    fn left_of_sign_unless_array(&mut self, id: Id) -> Option<()> {
        if self.shape(id)? == Shape::Function { self.left_of_sign(id, true) } else { self.left(id) }
    }

    fn right_array(&mut self, id: Id, has_space: bool) -> Option<()> {
        let Node::Array(bound, element) = *self.node(id) else { return self.right(id) };
        self.put(if has_space { " [" } else { "[" })?;
        if let Some(bound) = bound {
            self.print(bound)?;
        }
        self.put("]")?;
        let mut element = element;
        while let Node::Marked(_, inner) = *self.node(element) {
            element = inner;
        }
        self.nested(element, |printer| printer.right_array(element, false))
    }

    /// Prints parameters, what applies to the object, and the right half of the return type.
    pub(super) fn function_right(&mut self, id: Id, marks: &[Mark]) -> Option<()> {
        let Node::Function(returned, parameters) = self.node(id) else { return None };
        self.put("(")?;
        self.print_list(parameters)?;
        self.put(")")?;
        marks.iter().try_for_each(|&mark| self.print_mark(mark))?;
        returned.map_or(Some(()), |returned| self.right(returned))
    }

    fn shape(&mut self, id: Id) -> Option<Shape> {
        self.visit()?;
        match *self.node(id) {
            Node::Function(..) => Some(Shape::Function),
            Node::Method(_, inner) if matches!(self.node(inner), Node::Function(..) | Node::Method(..)) => {
                self.shape(inner)
            }
            Node::Array(..) => Some(Shape::Array),
            Node::Marked(_, inner) => match self.shape(inner)? {
                // Its parenthesis is open already.
                Shape::Function => Some(Shape::Other),
                shape => Some(shape),
            },
            Node::TemplateParameter(number) if self.lambdas == 0 => {
                let argument = self.argument(number)?;
                let outer = self.outer_scope();
                let before = std::mem::replace(&mut self.scope, outer);
                let shape = self.shape(argument);
                self.scope = before;
                shape
            }
            _ => Some(Shape::Other),
        }
    }

    /// Whether a type has a right half.
    fn has_right(&mut self, id: Id) -> Option<bool> {
        self.visit()?;
        match *self.node(id) {
            Node::Function(..) | Node::Array(..) => Some(true),
            Node::Method(_, inner)
            | Node::Marked(_, inner)
            | Node::Pointer(inner)
            | Node::Complex(inner)
            | Node::Imaginary(inner)
            | Node::VendorMarked(inner, _)
            | Node::MemberPointer(_, inner)
            | Node::Reference(inner)
            | Node::RvalueReference(inner) => self.has_right(inner),
            Node::TemplateParameter(number) if self.lambdas == 0 => {
                let argument = self.argument(number)?;
                let outer = self.outer_scope();
                let before = std::mem::replace(&mut self.scope, outer);
                let found = self.has_right(argument);
                self.scope = before;
                found
            }
            _ => Some(false),
        }
    }

    fn target(&mut self, id: Id) -> Option<Target> {
        let (is_lvalue, sub) = match *self.node(id) {
            Node::Reference(sub) => (true, sub),
            Node::RvalueReference(sub) => (false, sub),
            _ => return None,
        };
        let mut scope = self.scope;
        let mut of = sub;
        if let Node::TemplateParameter(number) = *self.node(sub)
            && self.lambdas == 0
        {
            // A substitution can lead to a parameter from where another template is in scope.
            let first = *self.first_scopes.entry(sub).or_insert(scope);
            let around = &self.active[..self.active.len().saturating_sub(1)];
            if first != scope && !around.contains(&sub) && !around.contains(&id) {
                scope = first;
            }
            let before = std::mem::replace(&mut self.scope, scope);
            let argument = self.argument(number);
            self.scope = before;
            of = argument?;
        }
        let own = if is_lvalue { "&" } else { "&&" };
        Some(match *self.node(of) {
            Node::Reference(inner) => Target { sign: "&", inner, scope },
            Node::RvalueReference(inner) => Target { sign: own, inner, scope },
            _ => Target { sign: own, inner: sub, scope },
        })
    }

    fn print_pack(&mut self, pattern: Id) -> Option<()> {
        let pack = if self.lambdas > 0 { None } else { self.find_pack(pattern)? };
        let Some(pack) = pack else {
            self.print_operand(pattern)?;
            return self.put("...");
        };
        let Node::List(elements) = self.node(pack) else { return None };
        for element in 0..elements.len() {
            if element > 0 {
                self.put(", ")?;
            }
            self.element = Some(element);
            self.print(pattern)?;
        }
        Some(())
    }
}
