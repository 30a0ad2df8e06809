//! Examples for each word's `--help` and man page: a command line, and what it is for. Each is parsed by a test.

/// Word, and its examples.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "record",
        &[
            ("heaptape record -- ls -lR /usr", "every event of ls and its children, and a summary"),
            ("heaptape record -q -o run1 -- make -j2", "quietly, into run1"),
            ("heaptape record -q -o - -- ls", "the trace alone, live, on standard output: for a pipe"),
            ("heaptape record --sample 512KiB -- redis-server", "a sample every 512 KiB, for long runs"),
        ],
    ),
    (
        "daemon",
        &[
            ("heaptape daemon --mode profile", "keep sums of every program that has the library preloaded"),
            ("heaptape daemon --program redis-server=trace --keep-bytes 10GiB", "and every event of one, in bounds"),
        ],
    ),
    (
        "ctl",
        &[
            ("heaptape ctl status", "how the daemon stands"),
            ("heaptape ctl show 4711", "one process and its call sites"),
            ("heaptape ctl mode redis-server trace", "keep every event of it from now on"),
            ("heaptape ctl snapshot", "write how all processes stand, and return when it is done"),
        ],
    ),
    (
        "send",
        &[
            ("heaptape send mpatrol.trace", "what the real mpatrol traced, into today's epoch"),
            ("heaptape send --socket /run/heaptape/socket -", "from standard input, to the machine's daemon"),
        ],
    ),
    (
        "stream",
        &[
            ("heaptape stream heaptape.redis.4711", "what a running recording gets, on standard output: for a pipe"),
            ("heaptape stream 4711", "of a process that is being recorded, until it ends"),
        ],
    ),
    ("env", &[("heaptape env --label web", "variables for a service's drop-in")]),
    (
        "epochs",
        &[
            ("heaptape epochs --last 2", "paths of the daemon's last two epochs"),
            ("heaptape epochs --last 1 --program redis-server", "of one program"),
        ],
    ),
    (
        "report",
        &[
            ("heaptape report heaptape.ls.4711", "the summary"),
            ("heaptape report --json heaptape.ls.4711", "the same for scripts"),
            ("heaptape report heap.pb.gz", "of a pprof, heaptrack, DHAT or Massif file"),
        ],
    ),
    (
        "leaks",
        &[
            ("heaptape leaks heaptape.ls.4711", "what was never freed"),
            (
                "heaptape leaks --depth 3 --top 10 heaptape.ls.4711",
                "stacks that share three frames as one; ten of them",
            ),
        ],
    ),
    (
        "peak",
        &[
            ("heaptape peak heaptape.ls.4711", "who holds the memory at the peak"),
            ("heaptape peak --from 50% --until 90% heaptape.ls.4711", "at the peak of a part of the run"),
        ],
    ),
    ("sites", &[("heaptape sites --top 30 heaptape.ls.4711", "thirty places that allocate most")]),
    ("sizes", &[("heaptape sizes heaptape.ls.4711", "how large blocks are, and what rounding costs")]),
    ("lifetimes", &[("heaptape lifetimes heaptape.ls.4711", "how long blocks live, and where they are allocated")]),
    ("temporary", &[("heaptape temporary heaptape.ls.4711", "blocks freed with nothing between")]),
    (
        "timeline",
        &[
            ("heaptape timeline heaptape.ls.4711", "live bytes over the run"),
            ("heaptape timeline --slices 100 --from 1s --until 2s heaptape.ls.4711", "a hundred slices of one second"),
        ],
    ),
    ("threads", &[("heaptape threads heaptape.ls.4711", "what each thread allocated and freed")]),
    ("realloc", &[("heaptape realloc heaptape.ls.4711", "what resizes cost")]),
    ("free-sites", &[("heaptape free-sites heaptape.ls.4711", "where memory is given back")]),
    ("fragmentation", &[("heaptape fragmentation heaptape.ls.4711", "who keeps nearly empty pages")]),
    ("top", &[("heaptape top", "the programs that the daemon serves, live")]),
    ("pack", &[("heaptape pack run1", "copy what names its frames into it, for another machine")]),
    (
        "diff",
        &[
            ("heaptape diff run1 run2", "what changed between two runs"),
            ("heaptape diff --from 40% --until 90% run1", "between two moments of one"),
        ],
    ),
    (
        "export",
        &[
            ("heaptape export --format pprof -o heap.pb.gz run1", "for go tool pprof"),
            ("heaptape export --format svg --what peak-bytes -o peak.svg run1", "a flame graph of the peak"),
            ("heaptape export --format svg -o change.svg run1 run2", "what changed, as a flame graph"),
            ("heaptape export --format csv --events -o events.csv run1", "every event as a row"),
            ("heaptape export --format heaptrack --process 4711 -o heap.zst run1", "for heaptrack_gui, of one process"),
        ],
    ),
    (
        "convert",
        &[
            ("heaptape convert --format gmon -o gmon.sum gmon.out.1 gmon.out.2", "the sum of two profiles"),
            ("heaptape convert --format mptl --flavour be32 -o other.mptl profile.mptl", "for another kind of machine"),
        ],
    ),
    ("dump", &[("heaptape dump run1/4711.ls/events.tape", "every record of a file, one a line")]),
    ("verify", &[("heaptape verify run1", "whether it is whole, with its ledger")]),
    ("dcpiprof", &[("heaptape dcpiprof -i run1", "allocated bytes by program and library")]),
    ("dcpilist", &[("heaptape dcpilist main run1", "a function's instructions with what they allocated")]),
    ("dcpicat", &[("heaptape dcpicat program.dcpi", "a profile as text")]),
    ("dcpidiff", &[("heaptape dcpidiff run1 run2", "what changed, by procedure")]),
    ("library", &[("heaptape library", "the path for LD_PRELOAD")]),
    ("gprof", &[("heaptape gprof -b ./program gmon.out", "flat profile and call graph")]),
    (
        "mleak",
        &[("heaptape mleak mpatrol.log", "unfreed allocations of a log"), ("heaptape mleak run1", "of a recording")],
    ),
    (
        "mprof",
        &[("heaptape mprof -v run1", "tables and call graph"), ("heaptape mprof mpatrol.out", "of mpatrol's own file")],
    ),
    ("mptrace", &[("heaptape mptrace -v run1", "every event and the sums")]),
    ("man", &[("heaptape man export", "one word's page"), ("heaptape man --output man1", "all pages as files")]),
    ("completions", &[("heaptape completions bash", "to be put where bash looks: /etc/bash_completion.d/heaptape")]),
];

/// The text that stands behind a word's options; empty for one without examples.
pub fn of(word: &str) -> String {
    let Some((_, examples)) = EXAMPLES.iter().find(|(known, _)| *known == word) else { return String::new() };
    let lines = examples.iter().map(|(line, what)| format!("  {line}\n      {what}"));
    format!("Examples:\n{}", lines.collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_has_examples_that_parse() {
        let command = crate::command();
        for word in command.get_subcommands() {
            let name = word.get_name();
            let examples = EXAMPLES.iter().find(|(known, _)| *known == name);
            let (_, examples) = examples.unwrap_or_else(|| panic!("{name} has no example in words/examples.rs"));
            for (line, _) in *examples {
                assert!(line.starts_with(&format!("heaptape {name}")), "{line}");
                let parsed = crate::command().try_get_matches_from(line.split_whitespace());
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
            }
        }
    }
}
