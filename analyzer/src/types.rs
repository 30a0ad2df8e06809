//! Types of blocks: from template arguments in the names of the functions that allocated them, and
//! from the names of vtables. A library changes the names of its functions with its versions: the
//! rules are one table, and tests have names of two versions of each library.

/// A function whose template argument is the type of the blocks that it allocates.
struct Rule {
    /// What the name has, up to the argument.
    before: &'static str,
    /// What follows after the arguments; empty for anything.
    after: &'static str,
    /// What the block is, with `{}` for the argument.
    phrase: &'static str,
}

const fn rule(before: &'static str, after: &'static str, phrase: &'static str) -> Rule {
    Rule { before, after, phrase }
}

/// Of the frames of a stack, innermost first, the first one that matches counts; of the rules the
/// first one.
const FUNCTIONS: &[Rule] = &[
    // libstdc++ (12: `__new_allocator`, before: `__gnu_cxx::new_allocator`) and libc++.
    rule("std::__new_allocator<", ">::allocate", "{}"),
    rule("__gnu_cxx::new_allocator<", ">::allocate", "{}"),
    rule("std::allocator<", ">::allocate", "{}"),
    rule("std::__1::allocator<", ">::allocate", "{}"),
    rule("std::allocator_traits<std::allocator<", "", "{}"),
    rule("std::__1::allocator_traits<std::__1::allocator<", "", "{}"),
    rule("std::make_unique<", "", "{}"),
    rule("std::__1::make_unique<", "", "{}"),
    rule("std::make_shared<", "", "{} of make_shared"),
    rule("std::allocate_shared<", "", "{} of make_shared"),
    rule("std::__1::allocate_shared<", "", "{} of make_shared"),
    rule("std::vector<", ">::", "{}[] of vector"),
    rule("std::_Vector_base<", ">::", "{}[] of vector"),
    rule("std::__1::vector<", ">::", "{}[] of vector"),
    // Rust, as v0 and as legacy names with arguments.
    rule("alloc::boxed::Box<", ">::new", "{}"),
    rule("<alloc::boxed::Box<", ">", "{}"),
    rule("alloc::rc::Rc<", ">", "Rc<{}>"),
    rule("alloc::sync::Arc<", ">", "Arc<{}>"),
    rule("hashbrown::raw::RawTable<", ">", "table of HashMap<{}>"),
    rule("alloc::raw_vec::RawVec<", ">", "{}[] of Vec"),
    rule("alloc::vec::Vec<", ">", "{}[] of Vec"),
    rule("alloc::collections::vec_deque::VecDeque<", ">", "{}[] of VecDeque"),
    rule("alloc::collections::btree::node::NodeRef<", ">", "node of BTreeMap"),
    rule("alloc::collections::btree::map::entry::VacantEntry<", ">", "node of BTreeMap"),
    rule("alloc::collections::btree::map::BTreeMap<", ">", "node of BTreeMap"),
    rule("alloc::collections::linked_list::LinkedList<", ">", "list node of {}"),
];

/// Functions of texts, which allocate them without an argument that says so. What has a text among its
/// arguments is none: the words of a text are no pointers.
const TEXTS: &[(&str, &str)] = &[
    ("basic_string<char", "text of std::string"),
    ("std::string::_M_", "text of std::string"),
    ("std::string::_Rep", "text of std::string"),
    ("alloc::string::String", "text of String"),
    ("alloc::str::", "text of str"),
];

/// Classes of the C++ libraries, and of Rust's, whose first argument is what the program stores.
const CLASSES: &[(&str, &str)] = &[
    ("std::_Sp_counted_ptr_inplace<", "{} of make_shared"),
    ("std::_Sp_counted_deleter<", "counts of shared_ptr<{}>"),
    ("std::_Sp_counted_ptr<", "counts of shared_ptr<{}>"),
    ("std::__1::__shared_ptr_emplace<", "{} of make_shared"),
    ("std::__1::__shared_ptr_pointer<", "counts of shared_ptr<{}>"),
    ("std::_Rb_tree_node<", "tree node of {}"),
    ("std::__1::__tree_node<", "tree node of {}"),
    ("std::__detail::_Hash_node<", "hash node of {}"),
    ("std::__1::__hash_node<", "hash node of {}"),
    ("std::_List_node<", "list node of {}"),
    ("std::__1::__list_node<", "list node of {}"),
    ("std::_Fwd_list_node<", "list node of {}"),
    ("alloc::rc::RcInner<", "Rc<{}>"),
    ("alloc::rc::RcBox<", "Rc<{}>"),
    ("alloc::sync::ArcInner<", "Arc<{}>"),
];

/// Returns the arguments that begin at the start of a text, up to the bracket that closes them, and
/// what follows after it.
fn arguments(text: &str) -> Option<(&str, &str)> {
    let mut depth = 1u32;
    let mut before = ' ';
    for (at, character) in text.char_indices() {
        match character {
            '<' | '(' | '[' | '{' => depth += 1,
            // `->` closes nothing.
            '>' if before == '-' => {}
            '>' | ')' | ']' | '}' => {
                depth -= 1;
                if depth == 0 {
                    return Some((&text[..at], &text[at..]));
                }
            }
            _ => {}
        }
        before = character;
    }
    None
}

/// Returns the first of some arguments.
fn first(arguments: &str) -> &str {
    let mut depth = 0i32;
    for (at, character) in arguments.char_indices() {
        match character {
            '<' | '(' | '[' | '{' => depth += 1,
            '>' | ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => return arguments[..at].trim(),
            _ => {}
        }
    }
    arguments.trim()
}

/// Returns whether the argument is a type, and not the name of a parameter (`T`), for which legacy
/// names of Rust have no type.
fn is_type(argument: &str) -> bool {
    let is_parameter = argument.chars().count() == 1 && argument.chars().all(char::is_uppercase);
    !argument.is_empty() && !is_parameter && argument != "_"
}

/// Returns what a class of a library stores, in words; any other class is its own name.
pub(crate) fn phrase_of_class(class: &str) -> String {
    if class.contains("_Hash_node_base*") {
        return "buckets of a hash table".into();
    }
    for (name, phrase) in CLASSES {
        if let Some(rest) = class.strip_prefix(name)
            && let Some((found, _)) = arguments(rest)
            && is_type(first(found))
        {
            let stored = first(found).trim_end_matches('*').trim();
            return phrase.replace("{}", &shown(stored));
        }
    }
    shown(class)
}

/// Returns a type without what only the library knows.
fn shown(class: &str) -> String {
    let class = class.replace("std::__cxx11::", "std::").replace("std::__1::", "std::").replace("[abi:cxx11]", "");
    let mut class = class.replace("> >", ">>");
    for text in [
        "std::basic_string<char, std::char_traits<char>, std::allocator<char>>",
        "std::basic_string<char, std::char_traits<char>, std::allocator<char> >",
    ] {
        class = class.replace(text, "std::string");
    }
    without_defaults(&class)
}

/// Removes the arguments of containers that are nearly always the default.
fn without_defaults(class: &str) -> String {
    let mut out = class.to_owned();
    for default in [", std::allocator<", ", std::default_delete<", ", std::less<", ", std::hash<", ", std::equal_to<"] {
        while let Some(at) = out.find(default) {
            let Some((argument, _)) = arguments(&out[at + default.len()..]) else { break };
            let end = at + default.len() + argument.len() + 1;
            out.replace_range(at..end, "");
        }
    }
    out.replace(", (__gnu_cxx::_Lock_policy)2", "").replace(", alloc::alloc::Global", "")
}

/// Returns the qualified name of a function without arguments, and without what it returns.
fn path_of(function: &str) -> String {
    let (mut path, mut depth) = (String::new(), 0u32);
    for character in function.chars() {
        match character {
            // `(anonymous namespace)::f` and `f(int)`
            '(' if depth == 0 && !path.is_empty() && !path.ends_with("::") => break,
            '<' | '(' | '[' | '{' => depth += 1,
            '>' | ')' | ']' | '}' => depth = depth.saturating_sub(1),
            ' ' if depth == 0 => path.clear(),
            _ if depth == 0 => path.push(character),
            _ => {}
        }
    }
    path
}

/// Returns whether a function hands memory to its caller under another name: a library's, or an
/// allocator's. What another one allocates is its own, wherever it is called from.
fn passes_memory_on(function: &str, path: &str) -> bool {
    const LIBRARIES: [&str; 5] = ["std::", "__gnu_cxx::", "alloc::", "core::", "hashbrown::"];
    const STARTS: [&str; 4] = ["operator new", "__rust_", "__rdl_", "__rg_"];
    const ALLOCATORS: [&str; 9] = [
        "malloc",
        "calloc",
        "realloc",
        "memalign",
        "aligned_alloc",
        "posix_memalign",
        "allocate",
        "do_allocate",
        "alloc",
    ];
    let is_of = |name: &str| LIBRARIES.iter().any(|library| name.starts_with(library));
    let is_rust = function.starts_with('<')
        && (is_of(function.trim_start_matches(['<', '&'])) || function.contains(" as alloc::"));
    is_rust
        || is_of(path)
        || STARTS.iter().any(|start| function.starts_with(start))
        || ALLOCATORS.contains(&path.rsplit("::").next().unwrap_or_default())
}

/// Returns whether a function makes an object in memory that is there already: what is allocated
/// meanwhile is the object's, and not the object.
fn constructs(path: &str) -> bool {
    const NAMES: [&str; 5] = ["construct", "construct_at", "__construct_at", "_Construct", "_S_construct"];
    path.starts_with("std::") && NAMES.contains(&path.rsplit("::").next().unwrap_or_default())
        || path.starts_with("__gnu_cxx::") && path.ends_with("::construct")
}

/// Returns the type of the blocks of a call stack, from the names of its innermost functions,
/// inlined ones included.
pub(crate) fn type_of_stack<'a>(functions: impl IntoIterator<Item = &'a str>) -> Option<String> {
    /// Frames of the library between the allocation and the function that names the type.
    const MOST: usize = 14;
    /// Frames of an allocator of the program's own in `operator new`.
    const INSIDE: usize = 6;
    let mut functions: Vec<&str> = functions.into_iter().take(MOST).collect();
    let is_operator = |function: &&str| function.starts_with("operator new") || function.starts_with("__rust_alloc");
    let inner = functions.iter().take(INSIDE).rposition(is_operator).unwrap_or(0);
    functions.drain(..inner);
    for (position, function) in functions.iter().enumerate() {
        let path = path_of(function);
        if constructs(&path) || !passes_memory_on(function, &path) {
            return None;
        }
        let found = FUNCTIONS.iter().find_map(|rule| matched(rule, function));
        if let Some((argument, phrase)) = found {
            let class = phrase_of_class(argument);
            let is_plain = phrase == "{}" && class == shown(argument);
            let rest = &functions[position..];
            let of_text = rest.iter().take(4).any(|outer| outer.contains("basic_string<")) && argument == "char";
            return Some(match () {
                () if of_text => "text of std::string".into(),
                () if is_plain && rest.iter().take(5).any(|outer| is_vector(outer)) => format!("{class}[] of vector"),
                () if is_plain && rest.iter().take(6).any(|outer| is_deque(outer)) => format!("{class}[] of deque"),
                () => phrase.replace("{}", &class),
            });
        }
        if let Some((_, phrase)) = TEXTS.iter().find(|(name, _)| is_of_text(name, function)) {
            return Some((*phrase).into());
        }
    }
    None
}

/// Returns whether a function is one of a class of texts, by the start of that: `std::string::_M_create`,
/// `std::__cxx11::basic_string<char, …>::append`, `<alloc::string::String as core::clone::Clone>::clone`.
fn is_of_text(name: &str, function: &str) -> bool {
    let own = function.trim_start_matches('<');
    let own = ["std::__cxx11::", "std::__1::", "std::"].iter().find_map(|space| own.strip_prefix(space)).unwrap_or(own);
    let Some(rest) = own.strip_prefix(name.trim_start_matches("std::")) else { return false };
    // Else it is what a function returns.
    name != "basic_string<char" || arguments(rest).is_some_and(|(_, rest)| rest.starts_with(">::"))
}

fn is_vector(function: &str) -> bool {
    ["std::_Vector_base<", "std::vector<", "std::__1::vector<", "std::__1::__split_buffer<"]
        .iter()
        .any(|name| function.starts_with(name))
}

fn is_deque(function: &str) -> bool {
    ["std::_Deque_base<", "std::deque<", "std::__1::deque<"].iter().any(|name| function.starts_with(name))
}

/// Returns the argument and the phrase if a rule matches.
fn matched<'a>(rule: &Rule, function: &'a str) -> Option<(&'a str, &'static str)> {
    let at = function.find(rule.before)?;
    let is_rust = ["alloc::", "hashbrown::"].iter().any(|start| rule.before.trim_start_matches('<').starts_with(start));
    let is_start = match is_rust {
        // No return type comes first: elsewhere it is an argument, e.g. `Vec<alloc::rc::Rc<Node>>`.
        true => function[..at].bytes().all(|byte| byte == b'<'),
        false => function[..at].chars().next_back().is_none_or(|last| !(last.is_alphanumeric() || "_:".contains(last))),
    };
    let (found, rest) = arguments(&function[at + rule.before.len()..]).filter(|_| is_start)?;
    let argument = first(found);
    (is_type(argument) && rest.starts_with(rule.after)).then_some((argument, rule.phrase))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(functions: &[&str]) -> String {
        type_of_stack(functions.iter().copied()).unwrap_or_default()
    }

    #[test]
    fn libstdcxx_names_its_types() {
        for allocator in ["std::__new_allocator", "__gnu_cxx::new_allocator"] {
            let allocate = |class: &str| format!("{allocator}<{class}>::allocate(unsigned long, void const*)");
            let one = |class: &str| of(&["operator new(unsigned long)", &allocate(class)]);
            assert_eq!(one("Order"), "Order");
            assert_eq!(
                one("std::_Rb_tree_node<std::pair<int const, Order> >"),
                "tree node of std::pair<int const, Order>"
            );
            assert_eq!(
                one("std::_Sp_counted_ptr_inplace<Session, std::allocator<Session>, (__gnu_cxx::_Lock_policy)2> "),
                "Session of make_shared"
            );
            assert_eq!(one("std::__detail::_Hash_node_base*"), "buckets of a hash table");
            assert_eq!(
                one("std::__detail::_Hash_node<std::pair<unsigned long const, std::shared_ptr<Session> >, false> "),
                "hash node of std::pair<unsigned long const, std::shared_ptr<Session>>"
            );
            let vector = "std::_Vector_base<Order*, std::allocator<Order*> >::_M_allocate(unsigned long)";
            assert_eq!(of(&[&allocate("Order*"), vector]), "Order*[] of vector");
            // The first nodes are made before the functions of the deque itself are there.
            let node = "std::_Deque_base<Order*, std::allocator<Order*> >::_M_allocate_node()";
            assert_eq!(of(&[&allocate("Order*"), node]), "Order*[] of deque");
            let string = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >::_M_create(unsigned long&, unsigned long)";
            assert_eq!(of(&[&allocate("char"), string]), "text of std::string");
        }
        assert_eq!(of(&["std::make_unique<Order>()"]), "Order");
        assert_eq!(of(&["std::make_shared<Session, int&>(int&)"]), "Session of make_shared");
    }

    #[test]
    fn libcxx_names_its_types() {
        let allocate =
            "std::__1::allocator<std::__1::__list_node<Order, void*>>::allocate[abi:ne180100](unsigned long)";
        assert_eq!(of(&["operator new(unsigned long)", allocate]), "list node of Order");
        assert_eq!(of(&["std::__1::make_unique<Order, 0>()"]), "Order");
    }

    #[test]
    fn what_has_a_text_among_its_arguments_is_no_text() {
        const TEXT: &str = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";
        for function in [
            format!("void push<{TEXT} >({TEXT})"),
            format!("{TEXT} shop::name(int)"),
            "alloc::collections::vec_map::Entry<alloc::string::String, alloc::sync::Arc<str>>::insert".into(),
            "shop::keep::<alloc::string::String>".into(),
            "<shop::List<alloc::string::String>>::push".into(),
        ] {
            assert_eq!(of(&["malloc", &function]), "", "{function}");
        }
        let entry = "alloc::collections::btree::map::entry::VacantEntry<alloc::string::String, u64>::insert_entry";
        assert_eq!(of(&["alloc::alloc::alloc", entry]), "node of BTreeMap");
        for function in [
            format!("{TEXT}::_M_create(unsigned long&, unsigned long)"),
            "std::string::_M_create(unsigned long&, unsigned long)".into(),
            "std::string::_Rep::_S_create(unsigned long, unsigned long, std::allocator<char> const&)".into(),
            "std::__1::basic_string<char, std::__1::char_traits<char>, std::__1::allocator<char>>::__grow_by(unsigned long)".into(),
        ] {
            assert_eq!(of(&["operator new(unsigned long)", &function]), "text of std::string", "{function}");
        }
        assert_eq!(of(&["alloc::alloc::alloc", "alloc::str::join_generic_copy"]), "text of str");
    }

    #[test]
    fn rust_names_its_types() {
        assert_eq!(of(&["alloc::alloc::exchange_malloc", "<alloc::boxed::Box<shop::Order>>::new"]), "shop::Order");
        assert_eq!(of(&["alloc::rc::Rc<shop::Node>::new"]), "Rc<shop::Node>");
        assert_eq!(of(&["<alloc::raw_vec::RawVec<shop::Order>>::grow_one"]), "shop::Order[] of Vec");
        let array = "alloc::raw_vec::RawVec<alloc::rc::Rc<shop::Node>,alloc::alloc::Global>::grow_one";
        assert_eq!(of(&[array]), "alloc::rc::Rc<shop::Node>[] of Vec", "no counts are in it");
        assert_eq!(of(&["alloc::boxed::Box<alloc::rc::RcInner<shop::Node>>::new"]), "Rc<shop::Node>");
        assert_eq!(of(&["alloc::boxed::Box<u8, alloc::alloc::Global>::new_in"]), "u8");
        assert_eq!(of(&["alloc::boxed::Box<T>::new", "shop::main"]), "", "a parameter is no type");
        assert_eq!(of(&["<alloc::string::String as core::clone::Clone>::clone"]), "text of String");
    }

    /// What a function of the program or of another library allocates, and what an object does while a
    /// container makes it, is not the element of the container that called it.
    #[test]
    fn only_what_the_library_allocates_has_the_type_of_its_argument() {
        const EMPLACE: &str = "std::thread& std::vector<std::thread, std::allocator<std::thread> >::emplace_back<void (&)(int), int>(void (&)(int), int&&)";
        const CONSTRUCT: &str = "void std::allocator_traits<std::allocator<std::thread> >::construct<std::thread, void (&)(int), int>(std::allocator<std::thread>&, std::thread*, void (&)(int), int&&)";
        const START: &str = "std::thread::_M_start_thread(std::unique_ptr<std::thread::_State, std::default_delete<std::thread::_State> >, void (*)())";
        for inner in [&["calloc", "_dl_allocate_tls", "pthread_create", START][..], &["operator new(unsigned long)"]] {
            let stack = [inner, &["std::thread::thread<void (&)(int), int>(void (&)(int), int&&)", CONSTRUCT, EMPLACE]];
            assert_eq!(of(&stack.concat()), "", "{inner:?}");
        }
        assert_eq!(of(&["operator new(unsigned long)", "Shape::Shape()", "std::make_unique<Shape>()"]), "");
        assert_eq!(of(&["malloc", "shop::take(int)", "std::vector<Order, std::allocator<Order> >::resize(int)"]), "");
        assert_eq!(of(&["alloc::alloc::alloc", "shop::boxed", "alloc::boxed::Box<shop::Order>::new"]), "");
        // An allocator of the program hands it on.
        let own = "shop::Pool<Order>::allocate(unsigned long)";
        let vector = "std::_Vector_base<Order, shop::Pool<Order> >::_M_allocate(unsigned long)";
        assert_eq!(of(&["malloc", own, vector]), "Order[] of vector");
        let operator = ["shop::heap(unsigned long)", "operator new(unsigned long)"];
        assert_eq!(of(&[&operator[..], &["std::make_unique<Order>()"]].concat()), "Order");
        assert_eq!(of(&["malloc", "shop::heap", "__rust_alloc", "alloc::rc::Rc<shop::Node>::new"]), "Rc<shop::Node>");
    }

    #[test]
    fn other_names_have_none() {
        for name in ["main", "my::make_unique<Order>()", "std::make_unique<", "operator new(unsigned long)", "<<<>"] {
            assert_eq!(of(&[name]), "", "{name}");
        }
    }

    #[test]
    fn classes_of_libraries_are_what_they_store() {
        assert_eq!(
            phrase_of_class("std::_Sp_counted_ptr<Session*, (__gnu_cxx::_Lock_policy)2>"),
            "counts of shared_ptr<Session>"
        );
        assert_eq!(
            phrase_of_class(
                "std::vector<std::unique_ptr<Order, std::default_delete<Order> >, std::allocator<std::unique_ptr<Order, std::default_delete<Order> > > >"
            ),
            "std::vector<std::unique_ptr<Order>>"
        );
        assert_eq!(phrase_of_class("Shape"), "Shape");
    }
}
