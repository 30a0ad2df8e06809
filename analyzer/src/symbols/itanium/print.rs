//! Prints a name. A type is printed in two halves, what stands before the name that it belongs to
//! and what stands behind: `void (*` and `)(int)`.

use super::parser::Tree;
use super::{Id, Mark, Node};
use rustc_hash::FxHashMap;

/// The deepest nesting. A level needs less than 1 KB of stack.
const DEEPEST: u32 = 300;
/// How many nodes are visited for one name. Real names need some hundreds.
const MOST_VISITS: u32 = 1 << 17;

/// A list of template arguments whose parameters are in scope, with the scope around it.
pub(super) struct Scope {
    template: Id,
    outer: Option<usize>,
}

pub(super) struct Printer<'t, 'a> {
    pub tree: &'t Tree<'a>,
    /// Whether functions have parameters and return types.
    with_parameters: bool,
    out: String,
    longest: usize,
    /// The last byte that was written, also if it was removed again: the binutils decide by it.
    last: u8,
    scopes: Vec<Scope>,
    pub scope: Option<usize>,
    /// The scope in which a parameter behind a reference was first printed.
    pub first_scopes: FxHashMap<Id, Option<usize>>,
    /// What is being printed, from the outside.
    pub active: Vec<Id>,
    /// The template whose name is being printed.
    pub template: Option<Id>,
    /// The element of packs that is being printed; `None` for whole packs.
    pub element: Option<usize>,
    /// Nesting of lambdas' parameters, where template parameters are `auto`.
    pub lambdas: u32,
    depth: u32,
    visits: u32,
}

/// Prints a tree, in at most `longest` bytes.
pub(super) fn print(tree: &Tree<'_>, root: Id, with_parameters: bool, longest: usize) -> Option<String> {
    let mut printer = Printer {
        tree,
        with_parameters,
        out: String::new(),
        longest,
        last: 0,
        scopes: Vec::new(),
        scope: None,
        first_scopes: FxHashMap::default(),
        active: Vec::new(),
        template: None,
        element: Some(0),
        lambdas: 0,
        depth: 0,
        visits: 0,
    };
    printer.print(root)?;
    Some(printer.out)
}

impl<'t, 'a> Printer<'t, 'a> {
    pub(super) fn node(&self, id: Id) -> &'t Node<'a> {
        self.tree.get(id)
    }

    pub(super) fn put(&mut self, text: &str) -> Option<()> {
        (self.out.len() + text.len() <= self.longest).then_some(())?;
        self.out.push_str(text);
        self.last = text.bytes().last().unwrap_or(self.last);
        Some(())
    }

    pub(super) fn put_number(&mut self, number: u64) -> Option<()> {
        self.put(&number.to_string())
    }

    pub(super) fn ends_with(&self, byte: u8) -> bool {
        self.last == byte
    }

    pub(super) fn visit(&mut self) -> Option<()> {
        self.visits += 1;
        (self.visits < MOST_VISITS).then_some(())
    }

    pub(super) fn nested(&mut self, id: Id, part: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        self.visit()?;
        if self.depth >= DEEPEST {
            return None;
        }
        self.depth += 1;
        self.active.push(id);
        let done = part(self);
        self.active.pop();
        self.depth -= 1;
        done
    }

    pub(super) fn print(&mut self, id: Id) -> Option<()> {
        self.left(id)?;
        self.right(id)
    }

    /// Prints with the arguments of a template in scope.
    pub(super) fn within(&mut self, template: Option<Id>, part: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        let outer = self.scope;
        if let Some(template) = template {
            self.scopes.push(Scope { template, outer });
            self.scope = Some(self.scopes.len() - 1);
        }
        let done = part(self);
        self.scope = outer;
        done
    }

    /// Prints with another scope.
    pub(super) fn in_scope(&mut self, scope: Option<usize>, part: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        let before = std::mem::replace(&mut self.scope, scope);
        let done = part(self);
        self.scope = before;
        done
    }

    /// The argument of a parameter, which may be a pack.
    fn whole_argument(&self, number: u64) -> Option<Id> {
        let Node::Template(_, arguments) = *self.node(self.scopes[self.scope?].template) else { return None };
        let Node::List(arguments) = self.node(arguments) else { return None };
        arguments.get(usize::try_from(number).ok()?).copied()
    }

    /// The argument of a parameter, and of a pack the element that is being printed.
    pub(super) fn argument(&self, number: u64) -> Option<Id> {
        let whole = self.whole_argument(number)?;
        match (self.node(whole), self.element) {
            (Node::List(pack), Some(element)) => pack.get(element).copied(),
            _ => Some(whole),
        }
    }

    /// The scope of a parameter's argument: it may refer to parameters further out.
    pub(super) fn outer_scope(&self) -> Option<usize> {
        self.scopes[self.scope?].outer
    }

    /// The first pack in a pattern.
    pub(super) fn find_pack(&mut self, id: Id) -> Option<Option<Id>> {
        let mut left = vec![id];
        while let Some(id) = left.pop() {
            self.visit()?;
            let before = left.len();
            match self.node(id) {
                Node::TemplateParameter(number) => {
                    let argument = self.whole_argument(*number)?;
                    if matches!(self.node(argument), Node::List(_)) {
                        return Some(Some(argument));
                    }
                }
                Node::PackExpansion(_)
                | Node::Lambda(..)
                | Node::Text(_)
                | Node::Tagged(..)
                | Node::Operator(_)
                | Node::Builtin(..)
                | Node::FunctionParameter(_)
                | Node::Unnamed(_)
                | Node::DefaultArgument(..)
                | Node::Binding(_) => {}
                Node::List(items) => left.extend(items),
                Node::Function(returned, parameters) => {
                    left.extend(returned);
                    left.extend(parameters);
                }
                Node::Braces(kind, items) => {
                    left.extend(kind);
                    left.extend(items);
                }
                Node::Array(bound, element) => {
                    left.extend(bound);
                    left.push(*element);
                }
                Node::Trinary(operator, first, second, third) => {
                    left.extend([*operator, *first, *second]);
                    left.extend(third);
                }
                Node::Binary(operator, first, second) => left.extend([*operator, *first, *second]),
                Node::Member(a, b)
                | Node::Local(a, b)
                | Node::Typed(a, b)
                | Node::Template(a, b)
                | Node::VendorMarked(a, b)
                | Node::Vector(a, b)
                | Node::MemberPointer(a, b)
                | Node::ConstructionVtable(a, b)
                | Node::Unary(a, b)
                | Node::Postfix(a, b)
                | Node::VendorCall(a, b) => left.extend([*a, *b]),
                Node::Literal { kind: inner, .. }
                | Node::Constructor(inner)
                | Node::Destructor(inner)
                | Node::VendorOperator(inner)
                | Node::Conversion(inner)
                | Node::Cast(inner)
                | Node::Marked(_, inner)
                | Node::Method(_, inner)
                | Node::Pointer(inner)
                | Node::Reference(inner)
                | Node::RvalueReference(inner)
                | Node::Complex(inner)
                | Node::Imaginary(inner)
                | Node::Decltype(inner)
                | Node::Prefixed(_, inner)
                | Node::ReferenceTemporary(inner, _)
                | Node::Clone(inner, _)
                | Node::Nullary(inner) => left.push(*inner),
            }
            left[before..].reverse();
        }
        Some(None)
    }

    /// Prints a list. What prints nothing at its end, an empty pack, has no comma either.
    pub(super) fn print_list(&mut self, items: &[Id]) -> Option<()> {
        let mut ends = Vec::new();
        for (index, &item) in items.iter().enumerate() {
            if index > 0 {
                self.put(", ")?;
                ends.push(self.out.len());
            }
            self.print(item)?;
        }
        for end in ends.into_iter().rev() {
            if self.out.len() != end {
                break;
            }
            self.out.truncate(end - 2);
        }
        Some(())
    }

    pub(super) fn print_mark(&mut self, mark: Mark) -> Option<()> {
        match mark {
            Mark::Const => self.put(" const"),
            Mark::Volatile => self.put(" volatile"),
            Mark::Restrict => self.put(" restrict"),
            Mark::Lvalue => self.put(" &"),
            Mark::Rvalue => self.put(" &&"),
            Mark::TransactionSafe => self.put(" transaction_safe"),
            Mark::Noexcept(None) => self.put(" noexcept"),
            Mark::Noexcept(Some(condition)) => {
                self.put(" noexcept(")?;
                self.print(condition)?;
                self.put(")")
            }
            Mark::Throw(types) => {
                self.put(" throw(")?;
                self.print(types)?;
                self.put(")")
            }
        }
    }

    /// A function with its name: the return type around it has the template's arguments in scope,
    /// and the name has not.
    fn print_typed(&mut self, name: Id, function: Id) -> Option<()> {
        let (name, mut marks) = self.without_marks(name);
        let mut entity = name;
        if let Node::Local(_, inner) = *self.node(name) {
            entity = inner;
            if let Node::DefaultArgument(inner, _) = *self.node(entity) {
                entity = inner;
            }
            let (inner, more) = self.without_marks(entity);
            entity = inner;
            marks.splice(0..0, more);
        }
        if !std::mem::replace(&mut self.with_parameters, true) {
            return self.print(name);
        }
        let template = matches!(self.node(entity), Node::Template(..)).then_some(entity);
        self.within(template, |printer| printer.left(function))?;
        self.print(name)?;
        self.within(template, |printer| printer.function_right(function, &marks))
    }

    /// A name without what applies to its object, and that, the innermost first.
    fn without_marks(&self, mut name: Id) -> (Id, Vec<Mark>) {
        let mut marks = Vec::new();
        while let Node::Method(mark, inner) = *self.node(name) {
            marks.insert(0, mark);
            name = inner;
        }
        (name, marks)
    }

    /// Prints what is not a type.
    pub(super) fn print_name(&mut self, id: Id) -> Option<()> {
        match self.node(id) {
            Node::Text(text) | Node::Builtin(text, _) => self.put(text),
            Node::Member(scope, entity) | Node::Local(scope, entity) => {
                // Functions that only tell where the entity is are told apart by their parameters.
                let with_parameters = std::mem::replace(&mut self.with_parameters, true);
                self.print(*scope)?;
                self.with_parameters = with_parameters;
                self.put("::")?;
                let mut entity = *entity;
                if let Node::DefaultArgument(inner, number) = *self.node(entity) {
                    self.put(&format!("{{default arg#{}}}::", number + 1))?;
                    entity = inner;
                }
                let entity = self.without_marks(entity).0;
                self.print(entity)
            }
            Node::DefaultArgument(entity, _) => self.print(*entity),
            Node::Typed(name, function) => self.print_typed(*name, *function),
            Node::Template(name, arguments) => {
                let outer = self.template.replace(id);
                self.print(*name)?;
                self.template = outer;
                self.print_arguments(*arguments)
            }
            Node::List(items) => self.print_list(items),
            Node::Constructor(name) => self.print(*name),
            Node::Destructor(name) => {
                self.put("~")?;
                self.print(*name)
            }
            Node::Operator(operator) => {
                self.put("operator")?;
                if operator.text.starts_with(|first: char| first.is_ascii_lowercase()) {
                    self.put(" ")?;
                }
                self.put(operator.text.strip_suffix(' ').unwrap_or(operator.text))
            }
            Node::VendorOperator(name) => {
                self.put("operator ")?;
                self.print(*name)
            }
            Node::Conversion(kind) => self.print_conversion(*kind),
            Node::Cast(kind) => {
                self.put("operator ")?;
                self.print(*kind)
            }
            Node::Decltype(expression) => {
                self.put("decltype (")?;
                self.print(*expression)?;
                self.put(")")
            }
            Node::Lambda(parameters, number) => {
                self.put("{lambda(")?;
                self.lambdas += 1;
                self.print_list(parameters)?;
                self.lambdas -= 1;
                self.put(&format!(")#{}}}", number + 1))
            }
            Node::Unnamed(number) => self.put(&format!("{{unnamed type#{}}}", number + 1)),
            Node::Binding(names) => {
                self.put("[")?;
                self.print_list(names)?;
                self.put("]")
            }
            Node::Prefixed(prefix, of) => {
                self.put(prefix)?;
                self.print(*of)
            }
            Node::ConstructionVtable(base, derived) => {
                self.put("construction vtable for ")?;
                self.print(*base)?;
                self.put("-in-")?;
                self.print(*derived)
            }
            Node::ReferenceTemporary(name, number) => {
                self.put(&format!("reference temporary #{number} for "))?;
                self.print(*name)
            }
            Node::Tagged(name, tag) => {
                self.print(*name)?;
                self.put("[abi:")?;
                self.print(*tag)?;
                self.put("]")
            }
            Node::Clone(name, _) if !self.with_parameters => self.print(*name),
            Node::Clone(name, suffix) => {
                self.print(*name)?;
                self.put(&format!(" [clone {suffix}]"))
            }
            _ => self.print_expression(id),
        }
    }

    fn print_arguments(&mut self, arguments: Id) -> Option<()> {
        if self.ends_with(b'<') {
            self.put(" ")?;
        }
        self.put("<")?;
        self.print(arguments)?;
        if self.ends_with(b'>') {
            self.put(" ")?;
        }
        self.put(">")
    }

    /// The type of a conversion operator may name parameters of the template around it.
    fn print_conversion(&mut self, kind: Id) -> Option<()> {
        self.put("operator ")?;
        let template = self.template;
        match *self.node(kind) {
            Node::Template(name, arguments) => {
                self.within(template, |printer| printer.print(name))?;
                self.print_arguments(arguments)
            }
            _ => self.within(template, |printer| printer.print(kind)),
        }
    }
}
