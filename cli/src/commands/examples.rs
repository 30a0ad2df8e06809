//! Examples for the `--help` and the manual page of each command: a command line and its purpose. A
//! test parses each of them.

/// Each command with its examples.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "record",
        &[
            ("heaptape record -- ls -lR /usr", "record every event of ls and its children, and print a summary"),
            ("heaptape record -q -o run1 -- make -j2", "record into run1, without a summary"),
            ("heaptape record -q -o - -- ls", "write only the trace, live, to standard output"),
            ("heaptape record --sample 512KiB -- redis-server", "sample one block per 512 KiB, for long runs"),
            (
                "heaptape record --allocator ./arena.alloc -- ./shop",
                "record an allocator of its own, which a file describes",
            ),
            ("heaptape record --live -- ./shop", "show the live call sites of a program while it runs"),
        ],
    ),
    (
        "attach",
        &[
            ("heaptape attach --for 60s redis-server", "record a running server for a minute, and leave it as it was"),
            ("heaptape attach -o leak1 4711", "record a process by its pid until Ctrl-C"),
            ("heaptape attach --dry-run 4711", "say what would be hooked, and whether it can be"),
        ],
    ),
    ("detach", &[("heaptape detach 4711", "restore a process whose heaptape attach was killed")]),
    (
        "daemon",
        &[
            ("heaptape daemon start", "record all programs that preload the library"),
            ("heaptape daemon env --label web", "environment that makes it record a service"),
            ("heaptape daemon list", "what it records"),
            ("heaptape daemon mark deploy-42", "keep the state of now, for heaptape diff --since deploy-42 NAME"),
        ],
    ),
    (
        "daemon start",
        &[
            (
                "heaptape daemon start --mode profile",
                "keep the live blocks and the sums of all programs that preload the library",
            ),
            (
                "heaptape daemon start --program redis-server=trace --keep-bytes 10GiB",
                "record every event of one program, with bounded disk space",
            ),
        ],
    ),
    ("daemon status", &[("heaptape daemon status", "state of the daemon")]),
    ("daemon list", &[("heaptape daemon list --sort growth", "what it records, by what grew in the last minute")]),
    ("daemon show", &[("heaptape daemon show 4711", "one process with its call sites")]),
    ("daemon mode", &[("heaptape daemon mode redis-server trace", "record every event of it from now on")]),
    (
        "daemon snapshot",
        &[("heaptape daemon snapshot", "write a snapshot of all processes, and return when it is on disk")],
    ),
    (
        "daemon attach",
        &[("heaptape daemon attach redis-server", "record a server that's already running; daemon detach restores it")],
    ),
    ("daemon detach", &[("heaptape daemon detach redis-server", "leave it as it was")]),
    ("daemon epoch", &[("heaptape daemon epoch", "end this epoch, and start the next one")]),
    (
        "daemon mark",
        &[("heaptape daemon mark deploy-42", "keep the state of now, for heaptape diff --since deploy-42 NAME")],
    ),
    ("daemon rotate", &[("heaptape daemon rotate redis-server", "start a new trace of it")]),
    ("daemon flush", &[("heaptape daemon flush", "write all that is known to disk")]),
    ("daemon metrics", &[("heaptape daemon metrics", "print the metrics")]),
    ("daemon reload", &[("heaptape daemon reload", "read the configuration again")]),
    ("daemon stop", &[("heaptape daemon stop", "stop the daemon")]),
    (
        "open",
        &[
            ("heaptape open", "the newest recording in this folder, in the browser"),
            ("heaptape open run1 run2", "what changed between two"),
            ("heaptape open --print -o page.html run1", "write the page to a file"),
        ],
    ),
    (
        "compat",
        &[
            ("heaptape compat mprof run1", "show the profile as mpatrol's mprof does"),
            ("heaptape compat gprof -b ./program gmon.out", "show a profile of gprof as GNU gprof does"),
        ],
    ),
    (
        "daemon ship",
        &[
            ("heaptape daemon ship --to /mnt/fleet/tables", "write the tables of all epochs that are not there yet"),
            ("heaptape daemon ship --to s3://tables/fleet --state /var/lib/heaptape", "the same to object storage"),
        ],
    ),
    (
        "daemon push",
        &[
            (
                "heaptape daemon push --to https://pyroscope.example",
                "push what all programs allocated since the last push",
            ),
            (
                "heaptape daemon push --to http://127.0.0.1:4318 --protocol otlp --live redis-server",
                "the same of one program to an OpenTelemetry collector",
            ),
        ],
    ),
    (
        "daemon send",
        &[
            ("heaptape daemon send mpatrol.trace", "store a trace of the real mpatrol in the current epoch"),
            (
                "heaptape daemon send --socket /run/heaptape/socket -",
                "read standard input, send it to the system's daemon",
            ),
        ],
    ),
    (
        "holds",
        &[
            ("heaptape holds run", "who holds what was live at the end, after record --references -o run"),
            ("heaptape holds --live redis-server", "who holds it now, of a program that is being recorded"),
            ("heaptape holds --of open_session", "how the blocks of one function, or of one type, are held"),
            ("heaptape holds --cycles", "shared_ptr and Rc cycles that nothing else holds"),
        ],
    ),
    (
        "rss",
        &[
            ("heaptape rss heaptape.redis-server.4711", "what the resident memory consisted of at the end"),
            ("heaptape rss --at peak --top 5 heaptape.redis-server.4711", "the same when it was largest"),
        ],
    ),
    (
        "whatif",
        &[
            ("heaptape whatif heaptape.redis-server.4711", "resident memory under each allocator that is installed"),
            (
                "heaptape whatif --allocator glibc,glibc:arena_max=2,jemalloc heaptape.redis-server.4711",
                "the same under these, the second with a setting",
            ),
        ],
    ),
    (
        "stream",
        &[
            ("heaptape stream heaptape.redis.4711", "write the trace of a running recording to standard output"),
            ("heaptape stream 4711", "the same of a process by its pid, until it ends"),
        ],
    ),
    (
        "daemon env",
        &[
            ("heaptape daemon env --label web", "environment for a systemd drop-in"),
            ("heaptape daemon env --socket /run/heaptape/socket", "environment for the system's daemon"),
        ],
    ),
    (
        "daemon epochs",
        &[
            ("heaptape daemon epochs --last 2", "paths of the last two epochs"),
            ("heaptape daemon epochs --last 1 --program redis-server", "processes of one program in the last epoch"),
        ],
    ),
    (
        "why",
        &[
            ("heaptape why heaptape.shop.4711", "how it ended, what grew and since when"),
            ("heaptape why redis-server", "the same of a program that the daemon records or recorded"),
            ("heaptape why 4711 --state /var/lib/heaptape", "the same of a process, without a running daemon"),
        ],
    ),
    (
        "daemon why",
        &[("heaptape daemon why redis-server", "whether it is alive or how it ended, what grew and since when")],
    ),
    (
        "report",
        &[
            ("heaptape report heaptape.ls.4711", "print the summary"),
            ("heaptape report --json heaptape.ls.4711", "print it as JSON"),
            ("heaptape report --mappings only heaptape.ls.4711", "list what the program mapped itself, by call site"),
            ("heaptape report heap.pb.gz", "summarize a pprof, jemalloc, gperftools, heaptrack, DHAT or Massif file"),
        ],
    ),
    (
        "leaks",
        &[
            ("heaptape leaks", "list what was never freed in the newest recording, with a verdict"),
            ("heaptape leaks --live redis-server", "the same of a program that the daemon serves"),
            ("heaptape leaks --from -1m heaptape.ls.4711", "list what the last minute allocated and never freed"),
            ("heaptape leaks --mappings only heaptape.ls.4711", "list what it mapped itself and never unmapped"),
            (
                "heaptape leaks --depth 3 --top 10 heaptape.ls.4711",
                "merge stacks with the same three frames; print ten",
            ),
        ],
    ),
    (
        "peak",
        &[
            ("heaptape peak heaptape.ls.4711", "list the call sites at the peak"),
            ("heaptape peak --from 50% --until 90% heaptape.ls.4711", "the same for the peak of a time range"),
        ],
    ),
    (
        "sites",
        &[
            ("heaptape sites --top 30 heaptape.ls.4711", "list the 30 call sites that allocate most"),
            ("heaptape sites --inclusive heaptape.ls.4711", "list functions, each with what it calls"),
        ],
    ),
    (
        "callers",
        &[
            ("heaptape callers load_order heaptape.shop.4711", "list who calls load_order"),
            ("heaptape callers --from 50% load_order heaptape.shop.4711", "the same for the second half of the run"),
        ],
    ),
    (
        "callees",
        &[
            ("heaptape callees main heaptape.shop.4711", "list what main calls, by what it allocates"),
            ("heaptape callees --thread worker* main heaptape.shop.4711", "the same for the threads of these names"),
        ],
    ),
    (
        "source",
        &[
            ("heaptape source load_order heaptape.shop.4711", "show the lines of load_order that allocate"),
            ("heaptape source --source-root src load_order heaptape.shop.4711", "the same with the source in src"),
        ],
    ),
    (
        "sizes",
        &[
            ("heaptape sizes heaptape.ls.4711", "show block sizes, and bytes lost to rounding"),
            ("heaptape sizes --thread worker* heaptape.shop.4711", "the same for the threads of these names"),
        ],
    ),
    (
        "lifetimes",
        &[
            ("heaptape lifetimes heaptape.ls.4711", "show block lifetimes by call site"),
            ("heaptape lifetimes --min-size 1MiB heaptape.ls.4711", "the same for large blocks"),
        ],
    ),
    (
        "temporary",
        &[
            ("heaptape temporary heaptape.ls.4711", "list call sites of short-lived blocks"),
            ("heaptape temporary --by function --top 20 heaptape.ls.4711", "list 20 functions instead of stacks"),
        ],
    ),
    (
        "timeline",
        &[
            ("heaptape timeline heaptape.ls.4711", "show live bytes over the run"),
            ("heaptape timeline --slices 100 --from 1s --until 2s heaptape.ls.4711", "show 100 slices of one second"),
            ("heaptape timeline --mappings only heaptape.ls.4711", "show what the program had mapped itself"),
        ],
    ),
    (
        "threads",
        &[
            ("heaptape threads heaptape.ls.4711", "show what each thread allocated and freed"),
            ("heaptape threads --from 1s --until 2s heaptape.ls.4711", "the same for one second of the run"),
        ],
    ),
    (
        "realloc",
        &[
            ("heaptape realloc heaptape.ls.4711", "show the cost of reallocations"),
            ("heaptape realloc --by line heaptape.ls.4711", "sum the call sites by source line"),
        ],
    ),
    (
        "free-sites",
        &[
            ("heaptape free-sites heaptape.ls.4711", "list call sites that free"),
            ("heaptape free-sites --by function heaptape.ls.4711", "sum the call sites by function"),
        ],
    ),
    (
        "address",
        &[
            ("heaptape address 0x7f12a4000ea0 heaptape.ls.4711", "list the blocks that contained an address"),
            ("heaptape address --json 0x7f12a4000ea0 heaptape.ls.4711", "the same as JSON"),
        ],
    ),
    (
        "core",
        &[
            ("heaptape core core.4711 run", "after record -o run: the blocks that the crash is about"),
            ("heaptape core --json core.4711 run", "the same as JSON"),
        ],
    ),
    (
        "fragmentation",
        &[
            ("heaptape fragmentation heaptape.ls.4711", "list call sites that hold nearly empty pages"),
            ("heaptape fragmentation --until 50% heaptape.ls.4711", "the same in the middle of the run"),
        ],
    ),
    (
        "top",
        &[
            ("heaptape top", "show the daemon's processes live"),
            ("heaptape top --control /run/heaptape-control/control", "those of the system's daemon"),
        ],
    ),
    (
        "pack",
        &[
            ("heaptape pack run1", "copy its symbols into it, for another machine"),
            ("heaptape pack --to run1.heaptape run1", "write it to one file, to attach to a bug report"),
        ],
    ),
    (
        "diff",
        &[
            ("heaptape diff run1 run2", "compare two runs"),
            ("heaptape diff --from 40% --until 90% run1", "compare two points in time of one run"),
        ],
    ),
    (
        "export",
        &[
            ("heaptape export --format pprof -o heap.pb.gz run1", "for go tool pprof"),
            ("heaptape export --format svg --what peak-bytes -o peak.svg run1", "draw a flame graph of the peak"),
            ("heaptape export --format svg -o change.svg run1 run2", "draw the changes as a flame graph"),
            ("heaptape export --format csv --events -o events.csv run1", "write every event as a row"),
            ("heaptape export --format heaptrack --process 4711 -o heap.zst run1", "for heaptrack_gui, one process"),
        ],
    ),
    (
        "convert",
        &[
            ("heaptape convert --format gmon -o gmon.sum gmon.out.1 gmon.out.2", "sum two profiles"),
            (
                "heaptape convert --format mptl --flavour be32 -o other.mptl profile.mptl",
                "change byte order and word size",
            ),
        ],
    ),
    (
        "dump",
        &[
            ("heaptape dump run1/4711.ls/events.tape", "print every record of a file"),
            ("heaptape dump gmon.out", "print the records of a file of gprof"),
        ],
    ),
    (
        "verify",
        &[
            ("heaptape verify run1", "check it, and print its accounting"),
            ("heaptape verify run1 run2", "check several; the exit status is the worst"),
            ("heaptape verify trace.mtrc", "check one file"),
        ],
    ),
    ("compat dcpiprof", &[("heaptape compat dcpiprof -i run1", "show allocated bytes by program and library")]),
    (
        "compat dcpilist",
        &[("heaptape compat dcpilist main run1", "list the instructions of a function with the bytes they allocated")],
    ),
    ("compat dcpicat", &[("heaptape compat dcpicat program.dcpi", "print a profile as text")]),
    ("compat dcpidiff", &[("heaptape compat dcpidiff run1 run2", "compare by procedure")]),
    ("compat dcpiscan", &[("heaptape compat dcpiscan /usr/lib", "list libraries with their build-ids")]),
    ("library", &[("heaptape library", "print the path for LD_PRELOAD")]),
    ("compat gprof", &[("heaptape compat gprof -b ./program gmon.out", "print flat profile and call graph")]),
    (
        "compat mleak",
        &[
            ("heaptape compat mleak mpatrol.log", "show unfreed allocations of a log"),
            ("heaptape compat mleak run1", "the same of a recording"),
        ],
    ),
    (
        "compat mprof",
        &[
            ("heaptape compat mprof -v run1", "print tables and call graph"),
            ("heaptape compat mprof mpatrol.out", "show a profile of the real mpatrol"),
        ],
    ),
    ("compat mptrace", &[("heaptape compat mptrace -v run1", "print every event and the sums")]),
    (
        "man",
        &[
            ("heaptape man export", "show the page of one command"),
            ("heaptape man --output man1", "write all pages to a folder"),
        ],
    ),
    ("completions", &[("heaptape completions bash", "print completions for /etc/bash_completion.d/heaptape")]),
];

/// Returns the first examples of a command as text for its help; empty if it has none. The name of
/// a command in a group has the group in front: `daemon list`.
pub(crate) fn of(command: &str, most: usize) -> String {
    let Some((_, examples)) = EXAMPLES.iter().find(|(known, _)| *known == command) else { return String::new() };
    let lines = examples.iter().take(most).map(|(line, what)| format!("  {line}\n      {what}"));
    format!("Examples:\n{}", lines.collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_examples_that_parse() {
        fn check(command: &clap::Command, group: &str) {
            for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
                let name = format!("{group}{}", subcommand.get_name());
                let examples = EXAMPLES.iter().find(|(known, _)| *known == name);
                let (_, examples) = examples.unwrap_or_else(|| panic!("{name} has no example in commands/examples.rs"));
                for (line, _) in *examples {
                    assert!(line.starts_with(&format!("heaptape {name}")), "{line}");
                    let parsed = crate::command().try_get_matches_from(line.split_whitespace());
                    assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                }
                check(subcommand, &format!("{name} "));
            }
        }
        check(&crate::command(), "");
    }
}
