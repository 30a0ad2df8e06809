//! Names of code that language runtimes generate.

use crate::stacks::Named;

/// Splits a name of a perf map. The names of V8 and CPython contain file and line. Those of V8 also
/// contain the optimization level, which changes during the run and would make two functions of
/// one.
pub fn code_name(name: &[u8]) -> Named {
    v8(name).or_else(|| python(name)).unwrap_or_else(|| Named { function: name.to_vec(), ..Named::default() })
}

/// Splits `JS:*function file:line:column`. The function may have no name, there are other kinds than
/// `JS`, and Node.js 18 leaves out the column.
fn v8(name: &[u8]) -> Option<Named> {
    const KINDS: [&[u8]; 6] = [b"JS:", b"LazyCompile:", b"Function:", b"Script:", b"Eval:", b"Module:"];
    let rest = KINDS.iter().find_map(|kind| name.strip_prefix(*kind))?;
    let rest = rest.strip_prefix(b"*").or(rest.strip_prefix(b"~")).or(rest.strip_prefix(b"^")).unwrap_or(rest);
    let rest = rest.strip_prefix(b"'").unwrap_or(rest);
    let (function, location) = rest.split_at(rest.iter().position(|byte| *byte == b' ')?);
    let (file, last) = numbered(location.trim_ascii())?;
    let (file, line) = numbered(file).unwrap_or((file, last));
    let function = if function.is_empty() { b"(anonymous)" } else { function };
    Some(Named { function: function.to_vec(), file: file.to_vec(), line })
}

/// Splits `text:number`.
fn numbered(text: &[u8]) -> Option<(&[u8], u64)> {
    let (text, digits) = text.split_at(text.iter().rposition(|byte| *byte == b':')?);
    number(&digits[1..]).filter(|number| *number > 0).map(|number| (text, number))
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Splits the CPython name `py::function:file`.
fn python(name: &[u8]) -> Option<Named> {
    let rest = name.strip_prefix(b"py::")?;
    let (function, file) = rest.split_at(rest.iter().position(|byte| *byte == b':')?);
    Some(Named { function: function.to_vec(), file: file[1..].to_vec(), line: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(named: &Named) -> String {
        let part = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        format!("{} {} {}", part(&named.function), part(&named.file), named.line)
    }

    #[test]
    fn names_of_runtimes_are_split() {
        for (name, wanted) in [
            ("JS:*outer /srv/my app.js:2:25", "outer /srv/my app.js 2"),
            ("JS:^ node:internal/main:1:1", "(anonymous) node:internal/main 1"),
            ("LazyCompile:~Module._load node:internal/modules:801:24", "Module._load node:internal/modules 801"),
            ("Eval:~ /srv/t.js:1:1", "(anonymous) /srv/t.js 1"),
            ("JS:*f", "JS:*f  0"),
            ("JS:*f file:x:1", "f file:x 1"),
            ("Function:^load /srv/shop.js:2", "load /srv/shop.js 2"),
            ("JS:*f file:x", "JS:*f file:x  0"),
            ("JS:*f file:1:0", "JS:*f file:1:0  0"),
            ("Builtin:HandleApiCall", "Builtin:HandleApiCall  0"),
            ("py::Shop.load:/srv/shop.py", "Shop.load /srv/shop.py 0"),
            ("py::f", "py::f  0"),
            ("int java.lang.String.hashCode()", "int java.lang.String.hashCode()  0"),
            ("", "  0"),
        ] {
            assert_eq!(text(&code_name(name.as_bytes())), wanted);
        }
    }
}
