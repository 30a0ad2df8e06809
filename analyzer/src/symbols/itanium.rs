//! C++ names of the [Itanium ABI](https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling) in
//! the spelling of the binutils: `c++filt`, `nm -C` and gprof print the same.
//!
//! cpp_demangle 0.5 prints one name in nine of a Debian's libraries differently, among them every
//! name with an empty pack, and refuses one in fifty; it cannot tell which. `docs/decisions.md` has
//! the numbers.

mod expressions;
mod names;
mod operators;
mod parser;
mod print;
mod print_expressions;
mod print_types;
mod types;

use operators::Operator;

/// A node of the tree, as an index: substitutions refer to nodes that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Id(u32);

/// How a literal of a built-in type is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Literal {
    /// `(char)65`
    Cast,
    /// `5`, or with a suffix `5ul`.
    Suffix(&'static str),
    /// `true`
    Bool,
    /// `(double)[400921fb54442d18]`
    Float,
    Void,
}

/// What stands behind a type or the parameters of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Const,
    Volatile,
    Restrict,
    /// The object is an lvalue, `f() &`.
    Lvalue,
    /// The object is an rvalue, `f() &&`.
    Rvalue,
    TransactionSafe,
    /// `noexcept`, with its condition.
    Noexcept(Option<Id>),
    /// `throw(int)`
    Throw(Id),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node<'a> {
    Text(&'a str),
    Builtin(&'static str, Literal),
    /// `A::b`
    Member(Id, Id),
    /// `f()::x`
    Local(Id, Id),
    /// An entity in the default argument of a parameter, counted from the last.
    DefaultArgument(Id, u64),
    /// A function's name and type.
    Typed(Id, Id),
    Template(Id, Id),
    /// Template arguments, a pack, or operands.
    List(Vec<Id>),
    TemplateParameter(u64),
    /// Counted from 1; 0 is `this`.
    FunctionParameter(u64),
    Constructor(Id),
    Destructor(Id),
    Operator(&'static Operator),
    VendorOperator(Id),
    /// `operator int`
    Conversion(Id),
    Cast(Id),
    /// A type with const, volatile or restrict.
    Marked(Mark, Id),
    /// A method, or its type, with what applies to its object.
    Method(Mark, Id),
    /// `int __attribute`
    VendorMarked(Id, Id),
    Pointer(Id),
    Reference(Id),
    RvalueReference(Id),
    Complex(Id),
    Imaginary(Id),
    /// The bound, then the type of the elements.
    Array(Option<Id>, Id),
    Vector(Id, Id),
    /// The class, then the type.
    MemberPointer(Id, Id),
    Function(Option<Id>, Vec<Id>),
    PackExpansion(Id),
    Decltype(Id),
    Lambda(Vec<Id>, u64),
    Unnamed(u64),
    Binding(Vec<Id>),
    /// `vtable for X`
    Prefixed(&'static str, Id),
    ConstructionVtable(Id, Id),
    ReferenceTemporary(Id, u64),
    Tagged(Id, Id),
    /// `f() [clone .cold]`
    Clone(Id, &'a str),
    Literal {
        kind: Id,
        text: &'a str,
        is_negative: bool,
    },
    Nullary(Id),
    Unary(Id, Id),
    /// `x++`
    Postfix(Id, Id),
    Binary(Id, Id, Id),
    Trinary(Id, Id, Id, Option<Id>),
    Braces(Option<Id>, Vec<Id>),
    VendorCall(Id, Id),
}

/// How much of a name is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// As c++filt does: abbreviations such as `std::string` are written out.
    Filter,
    /// As nm and gprof do, which keep them.
    Listing,
    /// Without parameters and return types.
    Short,
}

/// Returns the name in source form, or `None` if it is not a mangled C++ name or longer than
/// `longest` bytes.
pub(super) fn demangle(name: &str, spelling: Spelling, longest: usize) -> Option<String> {
    let (tree, root) = parser::parse(name, spelling == Spelling::Filter)?;
    print::print(&tree, root, spelling != Spelling::Short, longest)
}

#[cfg(test)]
mod tests {
    use super::{Spelling, demangle};

    #[test]
    fn names_are_spelled_as_by_the_binutils() {
        for (name, plain) in [
            ("_Z1fv", "f()"),
            ("_ZN1A1BC2Ev", "A::B::B()"),
            ("_ZNKR1A1fEv", "A::f() const &"),
            ("_Z1fPFvPA3_iE", "f(void (*)(int (*) [3]))"),
            ("_Z1fM1AKFvvE", "f(void (A::*)() const)"),
            ("_ZN4llvm15AnalysisManagerINS_6ModuleEJEEC1Ev", "llvm::AnalysisManager<llvm::Module>::AnalysisManager()"),
            ("_Z1fIJiOdRKcEEvDpOT_", "void f<int, double&&, char const&>(int&&, double&&, char const&)"),
            ("_ZZ4mainENKUlvE_clEv", "main::{lambda()#1}::operator()() const"),
            ("_ZL3runv.part.0.cold", "run() [clone .part.0] [clone .cold]"),
            ("_Z1fRSo", "f(std::ostream&)"),
            (
                "_ZTv0_n24_NSoD0Ev",
                "virtual thunk to std::basic_ostream<char, std::char_traits<char> >::~basic_ostream()",
            ),
        ] {
            assert_eq!(demangle(name, Spelling::Listing, 4096).as_deref(), Some(plain), "{name}");
        }
        let expanded = "f(std::basic_ostream<char, std::char_traits<char> >&)";
        assert_eq!(demangle("_Z1fRSo", Spelling::Filter, 4096).as_deref(), Some(expanded));
    }

    #[test]
    fn hostile_names_are_refused_in_bounded_time() {
        let deep = format!("_Z1f{}i", "P".repeat(100_000));
        let nested = format!("_Z1f{}", "N1a".repeat(50_000));
        let expression = format!("_Z1fIX{}EEvv", "ng".repeat(100_000));
        // Each type doubles the one before.
        let mut bomb = "_Z1fSt4pairIiiE".to_owned();
        for index in 0..40 {
            let number = if index == 0 { String::new() } else { (index - 1).to_string() };
            bomb.push_str(&format!("St4pairIS{number}_S{number}_E"));
        }
        for name in [&deep, &nested, &expression, &bomb] {
            assert_eq!(demangle(name, Spelling::Listing, 4096), None);
        }
        // Empty packs print nothing, however often.
        let mut quiet = "_Z1fIJEE".to_owned();
        quiet.push_str(&"DpT_".repeat(1 << 16));
        assert!(demangle(&quiet, Spelling::Listing, 4096).is_none_or(|name| name.len() <= 4096));
    }

    #[test]
    fn cut_and_damaged_names_are_read_to_an_end() {
        let names = [
            "_ZN5boost3log12v2s_mt_posix3aux14light_functionIFNS1_5sinks6syslog5levelERKNS1_11record_viewEEE4implEPv",
            "_ZSt4swapIiENSt9enable_ifIXsrSt6__and_IJSt6__not_ISt15__is_tuple_likeIT_EESt21is_move_constructibleIS3_E\
             St18is_move_assignableIS3_EEE5valueEvE4typeERS3_SC_",
            "_ZNKSt8functionIFvRKSsEEclES1_",
            "_Z1fIiEDTcl1gsrT_1xadL_Z1hvEEES0_",
        ];
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        for name in names {
            assert!(demangle(name, Spelling::Listing, 1 << 16).is_some(), "{name}");
            for end in 0..name.len() {
                let _ = demangle(&name[..end], Spelling::Listing, 1 << 16);
            }
            for _ in 0..20_000 {
                let mut bytes = name.as_bytes().to_vec();
                for _ in 0..2 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let at = (random >> 20) as usize % bytes.len();
                    bytes[at] = name.as_bytes()[(random >> 40) as usize % name.len()];
                }
                let _ = demangle(std::str::from_utf8(&bytes).unwrap(), Spelling::Filter, 1 << 16);
            }
        }
    }
}
