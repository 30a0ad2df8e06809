//! The parser's state, and what everything is made of: nodes, substitutions, numbers, identifiers.

use super::{Id, Node};

/// The deepest nesting. Real names have less than 60 levels; a level needs less than 1 KB of stack.
const DEEPEST: u32 = 200;

/// The nodes of a name.
pub(super) struct Tree<'a>(Vec<Node<'a>>);

impl<'a> Tree<'a> {
    pub(super) fn get(&self, id: Id) -> &Node<'a> {
        &self.0[id.0 as usize]
    }
}

pub(super) struct Parser<'a> {
    pub text: &'a str,
    pub at: usize,
    pub tree: Tree<'a>,
    /// What `S_`, `S0_`, … refer to.
    pub substitutions: Vec<Id>,
    /// What a constructor is called by.
    pub last_name: Option<Id>,
    /// In the type of a conversion operator, template arguments may belong to the operator.
    pub is_conversion: bool,
    pub is_expression: bool,
    /// Whether abbreviations are written out.
    pub expand: bool,
    pub depth: u32,
}

/// Parses a whole name.
pub(super) fn parse(name: &str, expand: bool) -> Option<(Tree<'_>, Id)> {
    let tree = Tree(Vec::new());
    let mut parser = Parser {
        text: name,
        at: 0,
        tree,
        substitutions: Vec::new(),
        last_name: None,
        is_conversion: false,
        is_expression: false,
        expand,
        depth: 0,
    };
    let keyed = ["_GLOBAL__I_", "_GLOBAL_.I_", "_GLOBAL_$I_"].iter().any(|start| name.starts_with(start));
    let unkeyed = ["_GLOBAL__D_", "_GLOBAL_.D_", "_GLOBAL_$D_"].iter().any(|start| name.starts_with(start));
    let root = if keyed || unkeyed {
        parser.at = 11;
        let of = match parser.rest().starts_with("_Z") {
            true => parser.mangled_name(false)?,
            false => parser.add(Node::Text(parser.rest())),
        };
        parser.at = if name[11..].starts_with("_Z") { parser.at } else { name.len() };
        parser.add(Node::Prefixed(
            if keyed { "global constructors keyed to " } else { "global destructors keyed to " },
            of,
        ))
    } else {
        let mut root = parser.mangled_name(true)?;
        while let Some(suffix) = parser.clone_suffix() {
            root = parser.add(Node::Clone(root, suffix));
        }
        root
    };
    (parser.at == name.len()).then_some((parser.tree, root))
}

impl<'a> Parser<'a> {
    pub(super) fn add(&mut self, node: Node<'a>) -> Id {
        self.tree.0.push(node);
        Id(self.tree.0.len() as u32 - 1)
    }

    pub(super) fn replace(&mut self, id: Id, node: Node<'a>) {
        self.tree.0[id.0 as usize] = node;
    }

    pub(super) fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// The byte at a distance, 0 at the end.
    pub(super) fn peek_at(&self, distance: usize) -> u8 {
        self.text.as_bytes().get(self.at + distance).copied().unwrap_or(0)
    }

    pub(super) fn peek(&self) -> u8 {
        self.peek_at(0)
    }

    /// Takes a byte if it is the next.
    pub(super) fn takes(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == byte && self.at < self.text.len();
        self.at += usize::from(is_next);
        is_next
    }

    /// Takes a text if it is next.
    pub(super) fn takes_text(&mut self, text: &str) -> bool {
        let is_next = self.rest().starts_with(text);
        self.at += if is_next { text.len() } else { 0 };
        is_next
    }

    pub(super) fn expect(&mut self, byte: u8) -> Option<()> {
        self.takes(byte).then_some(())
    }

    /// Runs a part of the grammar one level deeper.
    pub(super) fn nested<T>(&mut self, part: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth >= DEEPEST {
            return None;
        }
        self.depth += 1;
        let result = part(self);
        self.depth -= 1;
        result
    }

    fn clone_suffix(&mut self) -> Option<&'a str> {
        let bytes = self.rest().as_bytes();
        let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if bytes.first() != Some(&b'.') || !bytes.get(1).is_some_and(|&byte| is_word(byte)) {
            return None;
        }
        let mut end = 2 + bytes[2..].iter().take_while(|&&byte| is_word(byte)).count();
        while bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
            end += 1 + bytes[end + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        }
        let suffix = &self.rest()[..end];
        self.at += end;
        Some(suffix)
    }

    /// A number without a sign; 0 if there is none.
    pub(super) fn number(&mut self) -> Option<u64> {
        let digits = self.rest().bytes().take_while(u8::is_ascii_digit).count();
        let number = if digits == 0 { Some(0) } else { self.rest()[..digits].parse().ok() };
        self.at += digits;
        number.filter(|&number| number < 1 << 31)
    }

    /// `_` is 0, `0_` is 1.
    pub(super) fn compact_number(&mut self) -> Option<u64> {
        if self.takes(b'_') {
            return Some(0);
        }
        let number = self.peek().is_ascii_digit().then(|| self.number())??;
        self.expect(b'_')?;
        Some(number + 1)
    }

    /// Takes `_3` or `__10_`, which tell apart local entities of one name.
    pub(super) fn discriminator(&mut self) -> Option<()> {
        if !self.takes(b'_') {
            return Some(());
        }
        let is_long = self.takes(b'_');
        let number = self.number()?;
        if is_long && number >= 10 { self.expect(b'_') } else { Some(()) }
    }

    pub(super) fn source_name(&mut self) -> Option<Id> {
        let length = self.number().filter(|&length| length > 0)?;
        let end = self.at.checked_add(usize::try_from(length).ok()?)?;
        let text = self.text.get(self.at..end)?;
        self.at = end;
        let anonymous = text.strip_prefix("_GLOBAL_").map(str::as_bytes);
        let is_anonymous = anonymous.is_some_and(|rest| matches!(rest, [b'.' | b'_' | b'$', b'N', ..]));
        let name = self.add(Node::Text(if is_anonymous { "(anonymous namespace)" } else { text }));
        self.last_name = Some(name);
        Some(name)
    }

    /// `S` and what follows. `is_prefix`: more of the name follows, perhaps a constructor.
    pub(super) fn substitution(&mut self, is_prefix: bool) -> Option<Id> {
        self.expect(b'S')?;
        let byte = self.peek();
        if byte == b'_' || byte.is_ascii_digit() || byte.is_ascii_uppercase() {
            let index = self.base36()?;
            return self.substitutions.get(index).copied();
        }
        self.at += 1;
        let is_named_in_full = self.expand || is_prefix && matches!(self.peek(), b'C' | b'D');
        let (short, full, last) = match byte {
            b't' => ("std", "std", None),
            b'a' => ("std::allocator", "std::allocator", Some("allocator")),
            b'b' => ("std::basic_string", "std::basic_string", Some("basic_string")),
            b's' => (
                "std::string",
                "std::basic_string<char, std::char_traits<char>, std::allocator<char> >",
                Some("basic_string"),
            ),
            b'i' => ("std::istream", "std::basic_istream<char, std::char_traits<char> >", Some("basic_istream")),
            b'o' => ("std::ostream", "std::basic_ostream<char, std::char_traits<char> >", Some("basic_ostream")),
            b'd' => ("std::iostream", "std::basic_iostream<char, std::char_traits<char> >", Some("basic_iostream")),
            _ => return None,
        };
        if let Some(last) = last {
            self.last_name = Some(self.add(Node::Text(last)));
        }
        let found = self.add(Node::Text(if is_named_in_full { full } else { short }));
        if self.peek() != b'B' {
            return Some(found);
        }
        let tagged = self.abi_tags(found)?;
        self.substitutions.push(tagged);
        Some(tagged)
    }

    /// `_` is 0, `0_` is 1, `A_` is 11.
    fn base36(&mut self) -> Option<usize> {
        if self.takes(b'_') {
            return Some(0);
        }
        let digits = self.rest().bytes().take_while(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase()).count();
        let number = usize::from_str_radix(&self.rest()[..digits], 36).ok()?;
        self.at += digits;
        self.expect(b'_')?;
        number.checked_add(1)
    }

    pub(super) fn abi_tags(&mut self, mut name: Id) -> Option<Id> {
        let last = self.last_name;
        while self.takes(b'B') {
            let tag = self.source_name()?;
            name = self.add(Node::Tagged(name, tag));
        }
        self.last_name = last;
        Some(name)
    }
}
