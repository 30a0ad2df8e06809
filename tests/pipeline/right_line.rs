//! The line that is blamed is one that a person can change: the caller of a pool or of a library,
//! a function that ended in a jump, all lines of a function. Programs are as bugs are, and run for
//! about a second.

use heaptape_tests::target::PROTECTED;
use heaptape_tests::{Program, Recording, Target};
use serde_json::Value;
use std::fs;

fn json(recording: &Recording, arguments: &[&str]) -> Value {
    let output = recording.heaptape(&[arguments, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {output}"))
}

/// Returns the titles of the entries, and the lines below each.
fn entries(text: &str) -> Vec<Vec<&str>> {
    let mut found: Vec<Vec<&str>> = Vec::new();
    for line in text.lines() {
        let is_title = line.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        match found.last_mut() {
            _ if is_title => found.push(vec![line]),
            Some(entry) if line.starts_with("    ") => entry.push(line),
            _ => {}
        }
    }
    found
}

fn wrong_lines(arguments: &[&str]) -> Recording {
    let target = Target::program("wrong_lines.cpp").flag("-foptimize-sibling-calls").libraries(&["-l:libz.so.1"]);
    Program::new(target.build()).args(arguments).recorded().success().complete()
}

/// Returns the functions of the blamed frames of rows, each once, in order.
fn blamed(rows: &Value) -> Vec<String> {
    let of_row = |row: &Value| {
        let frames = row["stack"].as_array().cloned().unwrap_or_default();
        frames
            .iter()
            .find(|frame| frame["blamed"] == true)
            .map(|frame| frame["function"].as_str().unwrap_or("").to_string())
    };
    let mut names: Vec<String> = rows.as_array().expect("rows").iter().filter_map(of_row).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[test]
fn pools_behind_allocation_functions_are_wrappers() {
    let recording = Program::new(Target::program("own_pool.cpp").build()).recorded().success().complete();
    let sites = json(&recording, &["sites", "--module", "own_pool"]);
    let sites = &sites["processes"][0]["sites"];
    // A pool is blamed where the program calls it as a function of its own.
    assert_eq!(blamed(sites), ["draw", "lay_out", "nest", "pool::refill", "remember"], "{sites:#}");
    let of = |function: &str| {
        let row =
            sites.as_array().expect("rows").iter().find(|row| blamed(&Value::from(vec![(*row).clone()])) == [function]);
        row.unwrap_or_else(|| panic!("{function}")).clone()
    };
    let program = |row: &Value| -> Vec<String> {
        let frames = row["stack"].as_array().expect("a stack").iter().filter(|frame| frame["program"] == true);
        frames.map(|frame| frame["function"].as_str().expect("a name").to_string()).collect()
    };
    assert_eq!(program(&of("draw")), ["draw", "main"]);
    assert_eq!(program(&of("pool::refill")), ["pool::refill", "pool::take", "use_the_pool_itself", "main"]);
    // The page has the same rule in another language: its flags name the allocation functions.
    let text = recording.heaptape(&["leaks", "--all", "--frames", "all"]).text();
    assert!(text.contains("pool::refill own_pool.cpp:") && text.contains("operator new own_pool.cpp:"), "{text}");
}

#[test]
fn functions_that_end_in_a_jump_are_in_stacks() {
    let recording = wrong_lines(&["jumps"]);
    let leaks = json(&recording, &["leaks"]);
    let mut stacks: Vec<Vec<String>> = Vec::new();
    for leak in leaks["leaks"].as_array().expect("a list").iter().filter(|leak| leak["blocks"].as_u64() > Some(8)) {
        let frames = leak["stack"].as_array().expect("a stack");
        let name = |frame: &Value| {
            let (function, line) = (frame["function"].as_str().expect("a name"), &frame["line"]);
            let is_tail = frame["tail_call"] == true;
            assert!(!is_tail || (line.is_null() && frame["file"].is_null()), "no line is made up: {frame}");
            format!("{function}{}", if is_tail { "*" } else { "" })
        };
        let names: Vec<String> = frames.iter().map(name).collect();
        let until = names.iter().position(|name| name == "main").expect("main");
        stacks.push(names[..=until].to_vec());
    }
    stacks.sort();
    let expected = [
        &["Circle::make", "make_shape*", "main"][..],
        &["allocate_node*", "make_node*", "main"],
        &["make_gadget*", "main"],
        // Two ways lead from it to the allocator.
        &["make_part*", "main"],
        &["make_plain", "main"],
        &["make_widget*", "main"],
    ];
    assert_eq!(stacks, expected);
    let text = recording.heaptape(&["leaks"]).text();
    assert!(text.contains("\n    make_widget (wrong_lines) [tail call]\n    main wrong_lines.cpp:"), "{text}");
    let own = recording.heaptape(&["leaks", "--function", "make_gadget"]).success().text();
    assert!(entries(&own).len() == 1 && own.contains("900 B each"), "{own}");
    let inclusive = recording.heaptape(&["sites", "--inclusive"]).text();
    assert!(inclusive.contains("make_widget"), "{inclusive}");
    // The page has them, too.
    let page = recording.folder.join("page.html");
    let out = page.to_string_lossy().into_owned();
    let _ = recording.heaptape(&["export", "--format", "html", "-o", &out]).success();
    assert!(fs::metadata(&page).is_ok_and(|page| page.len() > 0));
}

/// An `operator new` that jumps into its pool is in no stack. What libstdc++ and a library of the
/// program call by its name is.
#[test]
fn allocation_functions_that_jump_into_their_pool_hide_it() {
    let target = || Target::program("jumps_to_pool.cpp").flag("-foptimize-sibling-calls").flag("-rdynamic");
    let library = Target::library("jumps_to_pool_library.c")
        .flag("-foptimize-sibling-calls")
        .flag("-Wl,--unresolved-symbols=ignore-all")
        .build();
    for flags in [&["-g"][..], &["-fno-plt"], &["-Wl,-z,now"], &[PROTECTED, "-no-pie"]] {
        let target = flags.iter().fold(target(), |target, flag| target.flag(*flag));
        let recording = Program::new(target.with(&library).build()).recorded().success().complete();
        let sites = json(&recording, &["sites", "--by", "stack"]);
        let mut found: Vec<(String, Vec<String>)> = Vec::new();
        for row in sites["processes"][0]["sites"].as_array().expect("rows") {
            let frames = row["stack"].as_array().expect("a stack");
            let names = frames.iter().map(|frame| {
                let is_tail = frame["tail_call"] == true;
                assert!(!is_tail || frame["line"].is_null(), "no line is made up: {frame}");
                format!("{}{}", frame["function"].as_str().expect("a name"), if is_tail { "*" } else { "" })
            });
            let names: Vec<String> = names.take_while(|name| name != "main").collect();
            if names.first().is_some_and(|name| name == "arena::grow") {
                found.push((blamed(&Value::from(vec![row.clone()])).concat(), names));
            }
        }
        found.sort();
        // `std::string`'s own functions, of which the inner one jumped.
        let of_string = [">::_M_create*", ">::_M_mutate"];
        let title = found.iter().find(|(blamed, _)| blamed == "title_page").expect("what libstdc++ allocates");
        assert_eq!(title.1[..3], ["arena::grow", "arena::take", "operator new*"], "{flags:?}");
        let ends = title.1[3..5].iter().zip(of_string).all(|(name, end)| name.ends_with(end));
        assert!(ends, "{flags:?}: {title:?}");
        let widget = found.iter().find(|(blamed, _)| blamed == "make_widget").expect("the own factory");
        assert_eq!(widget.1[1..], ["arena::take", "operator new*", "make_widget*", "open_window"], "{flags:?}");
        // Nothing of the library has a frame, so the recording doesn't know it.
        let part = found.iter().find(|(_, names)| names.contains(&"order_part".into())).expect("the library's factory");
        assert_eq!(part.1[1..], ["arena::take", "make_part*", "order_part"], "{flags:?}");
        assert_eq!(part.0, "arena::grow", "called as a function of its own");
        assert_eq!(found.len(), 3, "{found:?}");
    }
}

/// The C library has other names for its functions than those by which they are called.
#[test]
fn functions_of_one_jump_to_the_c_library_are_in_stacks() {
    for flags in [&["-g"][..], &["-fno-plt"], &[PROTECTED, "-no-pie"], &["-static"], &["-fuse-ld=lld"]] {
        let target = Target::program("one_jump.c").flag("-foptimize-sibling-calls");
        let program = flags.iter().fold(target, |target, flag| target.flag(*flag)).build();
        let recording = Program::new(program).recorded().success().complete();
        let sites = json(&recording, &["sites", "--by", "stack"]);
        let mut found: Vec<String> = Vec::new();
        for row in sites["processes"][0]["sites"].as_array().expect("rows") {
            let frames = row["stack"].as_array().expect("a stack").iter();
            let frames = frames.filter(|frame| frame["function"].as_str() != Some("__strdup"));
            let mut names: Vec<String> = frames
                .filter_map(|frame| {
                    let tail = if frame["tail_call"] == true { "*" } else { "" };
                    Some(format!("{}{tail}", frame["function"].as_str()?))
                })
                .collect();
            names.retain(|name| name != "strdup");
            if let Some(main) = names.iter().position(|name| name == "main") {
                found.push(names[..main].join(" < "));
            }
        }
        found.sort();
        let expected = ["add_plain", "copy_name* < add_user", "take_block* < add_session", "take_clear* < add_table"];
        assert_eq!(found, expected, "{flags:?}");
    }
}

#[test]
fn a_leak_through_a_library_is_one_entry_with_the_call_in_the_program() {
    let recording = wrong_lines(&["library"]);
    let text = recording.heaptape(&["leaks"]).text();
    let entries = entries(&text);
    assert_eq!(entries.len(), 1, "{text}");
    assert!(entries[0][0].contains("growing: ") && entries[0][0].ends_with(", from 5 stacks"), "{text}");
    assert!(entries[0][1].starts_with("    compress_orders wrong_lines.cpp:"), "{text}");
    // Debian's zlib for aarch64 jumps from one to the other.
    let of_library = if cfg!(target_arch = "aarch64") { "deflateInit2_" } else { "deflateInit_" };
    assert!(entries[0].contains(&format!("        by {of_library} (libz.so.1)").as_str()), "{text}");
    assert!(
        text.lines().next().is_some_and(|line| line.contains("growing: compress_orders wrong_lines.cpp:")),
        "{text}"
    );
    let leaks = json(&recording, &["leaks"]);
    for leak in leaks["leaks"].as_array().expect("a list").iter().filter(|leak| leak["blocks"].as_u64() > Some(8)) {
        assert_eq!(leak["verdict"], "growing", "{leak:#}");
        assert_eq!(leak["library"]["function"], of_library, "{leak:#}");
        assert!(leak["library"]["module"].as_str().is_some_and(|path| path.ends_with("/libz.so.1")), "{leak:#}");
    }
    let sites = json(&recording, &["sites"]);
    assert_eq!(blamed(&sites["processes"][0]["sites"])[..1], ["compress_orders"]);
}

#[test]
fn an_entry_names_all_its_lines_with_their_source() {
    let recording = wrong_lines(&["lines"]);
    let source = fs::read_to_string(heaptape_tests::test_env::programs().join("wrong_lines.cpp")).expect("the source");
    let line_of = |text: &str| source.lines().position(|line| line.contains(text)).expect("a line") + 1;
    let lines = ["// the session", "// the request", "// the history"].map(line_of);
    let place = format!("handle wrong_lines.cpp:{},{},{}", lines[0], lines[1], lines[2]);
    let text = recording.heaptape(&["leaks"]).text();
    assert!(text.lines().next().is_some_and(|line| line.ends_with(&format!("growing: {place}"))), "{text}");
    let entry = &entries(&text)[0];
    assert_eq!(entry[1], format!("    {place}"), "{text}");
    for (line, at) in lines.iter().zip(2..) {
        let words = source.lines().nth(line - 1).expect("a line").trim();
        assert!(entry[at].contains(&format!("{line}  {words}")), "{text}");
    }
    assert!(recording.heaptape(&["peak"]).text().contains(&format!("{place} < main")));
    let leaks = json(&recording, &["leaks", "--by", "function"]);
    let of_json: Vec<u64> = leaks["leaks"][0]["lines"]
        .as_array()
        .expect("lines")
        .iter()
        .map(|line| line["line"].as_u64().expect("a number"))
        .collect();
    assert_eq!(of_json, lines.map(|line| line as u64));
}

#[test]
fn long_names_lose_their_middle_and_short_runs_blame() {
    let recording = wrong_lines(&["names", "500"]);
    let text = recording.heaptape(&["leaks"]).text();
    let answer = json(&recording, &["leaks"]);
    let leak = &answer["leaks"][0];
    // On a busy machine 60 sleeps of half a millisecond may take a second.
    let is_short = leak["evidence"]["last"]["time_ns"].as_u64().is_some_and(|last| last < 1_000_000_000);
    let (short, title) = match is_short {
        true => ("; probably growing: ", "1. probably growing (the run was short): 293 KiB in 60 blocks"),
        false => ("; growing: ", "1. growing: 293 KiB in 60 blocks"),
    };
    let headline = text.lines().next().expect("a line");
    assert!(headline.chars().count() <= 100, "{headline}");
    assert!(headline.contains(short) && headline.contains("::insert_with_rehash wrong_lines.cpp:"), "{headline}");
    assert!(text.contains(&format!("\n{title}")), "{text}");
    assert!(text.contains("    …::BidirectionalConcurrentContainer::insert_with_rehash wrong_lines.cpp:"), "{text}");
    let (own, whole) =
        ("::insert_with_rehash wrong_lines.cpp:", "detail::BidirectionalConcurrentContainer<int, long>, char>");
    for command in [&["leaks"][..], &["peak"], &["sites"], &["leaks", "--frames", "all"]] {
        let text = recording.heaptape(command).text();
        assert!(text.contains(own) && !text.contains(whole), "{command:?}: {text}");
        let full = recording.heaptape(&[command, &["--full-names"]].concat()).text();
        assert!(full.contains(&format!("{whole}{own}")), "{full}");
    }
    if is_short {
        assert_eq!((&leak["verdict"], &leak["probably_growing"]), (&"too-little".into(), &true.into()), "{leak:#}");
        assert_eq!(leak["evidence"]["trend"], "growing");
        // Conditions keep their limits.
        let gate = recording.heaptape(&["leaks", "--fail-if", "leaked.growing > 0"]);
        assert_eq!(gate.code(), 0, "{gate}");
    }
}

#[test]
fn the_peak_with_what_the_program_mapped_is_found() {
    let recording = Program::new(heaptape_tests::target::c("maps_for_a_while")).recorded().success().complete();
    let text = recording.heaptape(&["peak"]).text();
    assert!(text.starts_with("peak of 4.00 MiB in 2 blocks, "), "{text}");
    assert!(
        text.contains(
            "peak of 65.0 MiB with what the program mapped itself: 64.0 MiB mapped and 1.00 MiB in 1 block, "
        ),
        "{text}"
    );
    assert!(
        text.contains("load_index maps_for_a_while.c:") && text.contains("mapped by the program itself "),
        "{text}"
    );
    let answer = json(&recording, &["peak"]);
    let (process, mib) = (&answer["processes"][0], |mib: u64| Value::from(mib << 20));
    assert_eq!(process["peak_bytes"], mib(4), "the peak of the heap is what it was: {process:#}");
    let whole = &process["with_mapped"];
    assert_eq!([&whole["bytes"], &whole["heap_bytes"], &whole["mapped_bytes"]], [&mib(65), &mib(1), &mib(64)]);
    assert_eq!(blamed(&whole["mapped"]), ["load_index"]);
    assert_eq!(blamed(&whole["holders"]), ["load_table"]);
    let at = |peak: &Value| peak["at"]["time_ns"].as_u64().expect("a time");
    assert!(at(whole) < at(process), "{process:#}");
    // A program that maps nothing has no second peak.
    let recording = Program::new(Target::program("own_pool.cpp").build()).recorded().success();
    assert!(json(&recording, &["peak"])["processes"][0]["with_mapped"].is_null());
}

#[test]
fn temporary_blocks_are_found_by_default() {
    let recording = Program::new(Target::program("own_pool.cpp").build()).recorded().success().complete();
    let of = |arguments: &[&str]| json(&recording, arguments)["processes"][0]["temporary"].as_u64().expect("a number");
    // The inner one of two blocks is freed by the next event, and the outer one is not.
    let [default, within_16, within_0] =
        [&["temporary"][..], &["temporary", "--within", "16"], &["temporary", "--within", "0"]].map(of);
    assert!(default == within_16 && default >= within_0 + 20, "{default} {within_16} {within_0}");
    assert!(recording.heaptape(&["temporary"]).text().contains("heaptape lifetimes"));
}
