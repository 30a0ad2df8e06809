//! The operators by their codes.

/// An operator.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Operator {
    pub code: &'static str,
    /// How it is written in an expression.
    pub text: &'static str,
    pub operands: u8,
}

/// Returns the operator of a code.
pub(super) fn find(code: &[u8]) -> Option<&'static Operator> {
    OPERATORS.iter().find(|operator| operator.code.as_bytes() == code)
}

const fn operator(code: &'static str, text: &'static str, operands: u8) -> Operator {
    Operator { code, text, operands }
}

static OPERATORS: &[Operator] = &[
    operator("aN", "&=", 2),
    operator("aS", "=", 2),
    operator("aa", "&&", 2),
    operator("ad", "&", 1),
    operator("an", "&", 2),
    operator("at", "alignof ", 1),
    operator("aw", "co_await ", 1),
    operator("az", "alignof ", 1),
    operator("cc", "const_cast", 2),
    operator("cl", "()", 2),
    operator("cm", ",", 2),
    operator("co", "~", 1),
    operator("dV", "/=", 2),
    operator("dX", "[...]=", 3),
    operator("da", "delete[] ", 1),
    operator("dc", "dynamic_cast", 2),
    operator("de", "*", 1),
    operator("di", "=", 2),
    operator("dl", "delete ", 1),
    operator("ds", ".*", 2),
    operator("dt", ".", 2),
    operator("dv", "/", 2),
    operator("dx", "]=", 2),
    operator("eO", "^=", 2),
    operator("eo", "^", 2),
    operator("eq", "==", 2),
    operator("fL", "...", 3),
    operator("fR", "...", 3),
    operator("fl", "...", 2),
    operator("fr", "...", 2),
    operator("ge", ">=", 2),
    operator("gs", "::", 1),
    operator("gt", ">", 2),
    operator("ix", "[]", 2),
    operator("lS", "<<=", 2),
    operator("le", "<=", 2),
    operator("li", "operator\"\" ", 1),
    operator("ls", "<<", 2),
    operator("lt", "<", 2),
    operator("mI", "-=", 2),
    operator("mL", "*=", 2),
    operator("mi", "-", 2),
    operator("ml", "*", 2),
    operator("mm", "--", 1),
    operator("na", "new[]", 3),
    operator("ne", "!=", 2),
    operator("ng", "-", 1),
    operator("nt", "!", 1),
    operator("nw", "new", 3),
    operator("oR", "|=", 2),
    operator("oo", "||", 2),
    operator("or", "|", 2),
    operator("pL", "+=", 2),
    operator("pl", "+", 2),
    operator("pm", "->*", 2),
    operator("pp", "++", 1),
    operator("ps", "+", 1),
    operator("pt", "->", 2),
    operator("qu", "?", 3),
    operator("rM", "%=", 2),
    operator("rS", ">>=", 2),
    operator("rc", "reinterpret_cast", 2),
    operator("rm", "%", 2),
    operator("rs", ">>", 2),
    operator("sP", "sizeof...", 1),
    operator("sZ", "sizeof...", 1),
    operator("sc", "static_cast", 2),
    operator("ss", "<=>", 2),
    operator("st", "sizeof ", 1),
    operator("sz", "sizeof ", 1),
    operator("tr", "throw", 0),
    operator("tw", "throw ", 1),
];
