use super::*;

fn stack(frames: &[(&str, &str, &str)]) -> Vec<NamedFrame> {
    let frame = |&(function, file, module): &(&str, &str, &str)| NamedFrame {
        frame: Frame {
            function: Some(function.into()),
            file: (!file.is_empty()).then(|| file.into()),
            line: Some(7),
            module: module.into(),
            ..Frame::default()
        },
        symbol: None,
    };
    frames.iter().map(frame).collect()
}

fn is_suppressed(text: &str, frames: &[(&str, &str, &str)]) -> bool {
    read("rules", text).unwrap().iter().any(|rule| rule.matches(&stack(frames)))
}

const STACK: &[(&str, &str, &str)] = &[
    ("wrap", "src/wrap.c", "/opt/libwrap.so.1"),
    ("load_config", "src/config.c", "/opt/app"),
    ("main", "src/main.c", "/opt/app"),
];

#[test]
fn lsan_rules_match_function_file_or_module_of_any_frame() {
    for (rule, expected) in [
        ("leak:load_config", true),
        ("leak:^config", false),
        ("leak:^load*fig$", true),
        ("leak:libwrap.so", true),
        ("leak:config.c", true),
        ("# leak:main", false),
        ("race:main", false),
    ] {
        assert_eq!(is_suppressed(rule, STACK), expected, "{rule}");
    }
    assert_eq!(read("f", "leak:a\nnonsense").unwrap_err().origin, "f:2");
}

#[test]
fn valgrind_blocks_match_the_innermost_frames() {
    let block = |steps: &str| format!("{{\n  name\n  Memcheck:Leak\n  match-leak-kinds: reachable\n  {steps}\n}}\n");
    for (steps, expected) in [
        ("fun:malloc\n fun:wrap", true),
        ("fun:wrap\n fun:load_*", true),
        ("fun:malloc\n fun:load_config", false),
        ("fun:*alloc\n ...\n fun:main", true),
        ("fun:malloc\n obj:*/libwrap.so*\n src:config.c:7", true),
        ("fun:malloc\n ...\n src:main.c:8", false),
        ("...\n fun:wrap\n ...\n fun:main", true),
        ("fun:malloc\n fun:wrap\n fun:load_config\n fun:main\n fun:_start", false),
    ] {
        assert_eq!(is_suppressed(&block(steps), STACK), expected, "{steps}");
    }
    assert!(!is_suppressed("{\n n\n Memcheck:Cond\n fun:wrap\n}", STACK), "rule of another kind");
    assert!(read("f", "{\n n\n Memcheck:Leak\n fun:wrap\n").is_err(), "no closing brace");
    assert!(read("f", "{\n n\n Memcheck:Leak\n fan:wrap\n}").is_err());
}

#[test]
fn generated_rules_suppress_their_stack() {
    for (dialect, program) in [(Dialect::Lsan, 1), (Dialect::Valgrind, 1)] {
        let text = generate(dialect, &stack(STACK), program, 1);
        assert!(is_suppressed(&text, STACK), "{text}");
        assert!(!is_suppressed(&text, &[("other", "o.c", "/opt/other")]), "{text}");
    }
}

#[test]
fn only_runtime_memory_is_kept_on_purpose() {
    let frames = |list: &[(&str, &str)]| -> Vec<Frame> {
        let frame = |&(function, module): &(&str, &str)| Frame {
            function: (!function.is_empty()).then(|| function.into()),
            module: module.into(),
            ..Frame::default()
        };
        list.iter().map(frame).collect()
    };
    let kept = |list: &[(&str, &str)]| kept_on_purpose(frames(list).into_iter());
    let libc = "/lib/x86_64-linux-gnu/libc.so.6";
    assert!(kept(&[("_IO_file_doallocate", libc), ("printf", libc), ("main", "/bin/app")]).is_some());
    assert!(kept(&[("", libc), ("setlocale", libc), ("main", "/bin/app")]).is_some());
    assert!(kept(&[("strdup", libc), ("main", "/bin/app"), ("setlocale", libc)]).is_none());
    assert!(kept(&[("", "/usr/lib/libstdc++.so.6"), ("call_init", "/lib64/ld-linux-x86-64.so.2")]).is_some());
    assert!(kept(&[("construct", "/opt/lib.so"), ("call_init", "/lib64/ld-linux-x86-64.so.2")]).is_none());
}
