//! Real programs behave the same: bare, recorded, and with the library but no recorder.

use heaptape_tests::disk::SmallDisk;
use heaptape_tests::{Program, conditions, is_full, same, test_env, torture};
use std::time::Duration;

/// Programs of a base system (and what `scripts/install-tools` installs), as lines of a shell whose
/// output does not depend on time or process ids.
const LINES: &[&str] = &[
    "true",
    "false",
    "echo words; printf '%s\\n' more",
    "ls -l /usr/lib | head -500",
    "ls -R /usr/share/doc | wc",
    "find /usr/share -name '*.gz' | sort | md5sum",
    "grep -rc the /usr/share/common-licenses | sort",
    "seq 200000 | sort -R --random-source=/dev/zero | sort -n | md5sum",
    "seq 100000 | awk '{ n[$1 % 1000] += $1 } END { for (i in n) s += n[i]; print s }'",
    "seq 100000 | sed 's/1/one/g' | tr o 0 | md5sum",
    "tar cf - -C /usr/share common-licenses | md5sum",
    "seq 300000 | gzip -9 | gzip -d | md5sum",
    "seq 100000 | xz -1 | xz -d | md5sum",
    "seq 100000 | bzip2 | bzip2 -d | md5sum",
    "perl -e 'my %h; $h{$_ % 977} .= $_ for 1..200000; print length join q(,), map { $h{$_} } sort keys %h'",
    "/usr/bin/python3 -c 'print(sum(len(str(i)) for i in range(200000)), sorted({str(i) for i in range(1000)})[:5])'",
    "sqlite3 :memory: 'create table t(a,b); insert into t values (1,2),(3,4); select sum(a*b) from t; select * from missing;'",
    "bash -c 'a=(); for i in {1..3000}; do a+=($i); done; echo ${#a[@]} ${a[@]:10:5}; exit 3'",
    "cat /proc/self/mountinfo | wc -l >/dev/null; test -e /nowhere || ls /nowhere",
    "git --version; git log --oneline -1 /nonexistent",
    "openssl dgst -sha256 /usr/share/common-licenses/GPL-3",
    "diff /usr/share/common-licenses/GPL-2 /usr/share/common-licenses/GPL-3 | wc",
    "dpkg-query -W -f '${Package}\\n' | sort | wc -l",
    "gcc -O1 -S -x c -o - /dev/null",
    "kill -TERM $$",
    "ulimit -c 0; { sh -c 'kill -SEGV $$'; } 2>/dev/null; echo $?",
    "make -s -j4 -f - all <<'E'\nall: a b c d e f\na b c d e f:\n\t@expr 1 + 1 >/dev/null\nE",
    "date -u -d @0; env -i /usr/bin/env; id -u; uname -s",
    "file /bin/ls | cut -c1-20; stat -c %F /; du -s /usr/share/common-licenses >/dev/null",
    "m4 -P </dev/null; bc <<< '2^200'",
    "busybox echo static or not",
    "gdb -q -batch -ex 'print 6*7' -ex 'info line main' /bin/true",
];

#[test]
fn thirty_programs_have_the_same_output() {
    let tried = LINES.iter().filter(|line| conditions::recorded_and_preloaded(line)).count() as u64;
    assert!(tried >= 25, "only {tried} programs are installed: run scripts/install-tools");
    torture::passed(1, "programs with the same output bare, recorded, and preloaded", tried);
}

/// Programs have the same output when their recorder is killed, and when the disk is full.
#[test]
fn programs_have_the_same_output_when_their_recorder_fails() {
    let step = if is_full() { 1 } else { 8 };
    let (mut killed, mut full) = (0, 0);
    let disk = SmallDisk::mount("96k");
    for line in LINES.iter().step_by(step) {
        let moment = Duration::from_micros(7919 * (killed + 1) % 30_000);
        killed += u64::from(conditions::recorder_killed(line, moment));
        full += u64::from(disk.as_ref().is_some_and(|disk| conditions::disk_full(line, disk)));
    }
    torture::passed(4, "programs with the same output after their recorder was killed", killed);
    torture::passed(33, "programs with the same output on a full disk", full);
}

#[test]
fn standard_input_and_binary_output_are_unchanged() {
    let bytes: Vec<u8> = (0..1_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let program = Program::new("cat").stdin(bytes.clone());
    let recording = program.recorded();
    same(&program.plain(), &recording.outcome);
    assert_eq!(recording.outcome.stdout, bytes);
}

#[test]
fn working_directory_stays_empty() {
    let folder = test_env::folder();
    let program = Program::new("pwd").folder(folder.path());
    let plain = program.plain();
    same(&plain, &program.recorded().outcome);
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0, "the recording is elsewhere");
}
