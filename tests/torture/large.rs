//! Programs that are not in a base system: runtimes with their own signals and threads, servers, a
//! browser, programs that change privileges or sandbox themselves. Each runs in five conditions.
//! `scripts/dev torture` installs them.

use heaptape_tests::disk::SmallDisk;
use heaptape_tests::{conditions, torture};
use std::time::Duration;

/// Names of programs, each with a shell line whose output does not depend on time or process IDs.
const LINES: &[(&str, &str)] = &[
    (
        "java, compiling and collecting garbage",
        r####"d=$(mktemp -d); cat >$d/Churn.java <<"J"
import java.util.*;
class Churn { public static void main(String[] a) throws Exception { long sum = 0; List<Thread> all = new ArrayList<>();
 for (int t = 0; t < 4; t++) { Thread one = new Thread(() -> { Map<Integer, byte[]> m = new HashMap<>(); for (int i = 0; i < 200000; i++) m.put(i % 5000, new byte[i % 3000]); }); one.start(); all.add(one); }
 for (Thread one : all) one.join(); for (int i = 0; i < 1000; i++) { try { String s = null; s.length(); } catch (NullPointerException e) { sum += i; } } System.gc(); System.out.println(sum); } }
J
java -Xmx256m $d/Churn.java; echo $?; rm -r $d"####,
    ),
    (
        "node, a server and its client",
        r####"node -e "let m = new Map(); for (let i = 0; i < 300000; i++) m.set(i % 1000, Buffer.alloc(i % 5000)); console.log(m.size, JSON.stringify([...m.keys()].slice(0, 5))); require(\"http\").createServer((q, r) => r.end(q.url)).listen(0, function () { require(\"http\").get({ port: this.address().port, path: \"/words\" }, r => r.on(\"data\", d => console.log(String(d))).on(\"end\", () => process.exit(4))) })""####,
    ),
    (
        "ruby",
        r####"ruby -e "h = Hash.new { |a, k| a[k] = [] }; 200_000.times { |i| h[i % 977] << i.to_s }; GC.start; puts h.values.map(&:size).sum, h[3].last; Thread.new { puts :thread }.join; exit 5""####,
    ),
    (
        "php",
        r####"php -n -r "\$a = []; for (\$i = 0; \$i < 300000; \$i++) \$a[\$i % 977] = str_repeat(\"x\", \$i % 300); echo count(\$a), \" \", md5(serialize(\$a)), \"\\n\"; fwrite(STDERR, \"err\\n\"); exit(6);""####,
    ),
    (
        "vim",
        r####"vim -N -u NONE -i NONE -es -c "r /usr/share/common-licenses/GPL-3" -c "%s/the/THE/g" -c "w! /dev/stdout" -c "qa!" | md5sum"####,
    ),
    (
        "man and its pipeline",
        r####"MANPAGER=cat man -P cat bash 2>&1 | head -20 | md5sum; man -w nosuchpage; echo $?"####,
    ),
    ("sudo", r####"sudo -n id -un; sudo -n sh -c "exit 7"; echo $?"####),
    (
        "bubblewrap",
        r####"bwrap --ro-bind / / --unshare-all --die-with-parent sh -c "echo inside; id -u; exit 8"; echo $?"####,
    ),
    (
        "a screenshot of chromium",
        r####"d=$(mktemp -d); chromium --headless --no-sandbox --disable-gpu --user-data-dir=$d/p --screenshot=$d/a.png --window-size=300,200 "data:text/html,<p style=color:red>words</p><canvas id=c></canvas><script>document.title=[...Array(1e5).keys()].length</script>" >/dev/null 2>&1; echo $?; md5sum <$d/a.png; rm -r $d"####,
    ),
    (
        "PostgreSQL: initdb, pgbench, psql",
        r####"d=$(mktemp -d); chmod 755 $d; b=$(ls -d /usr/lib/postgresql/*/bin | tail -1); mkdir $d/s; chown postgres $d/s; r="runuser -u postgres --"; $r $b/initdb -D $d/s/data -A trust >/dev/null 2>&1; echo $?; $r $b/pg_ctl -D $d/s/data -l $d/s/log -o "-k $d/s -c listen_addresses= -c fsync=off" -w start >/dev/null; echo $?; pgbench -h $d/s -U postgres -i -s 1 -q postgres >/dev/null 2>&1; pgbench -h $d/s -U postgres -t 200 -c 4 postgres 2>&1 | grep "actually processed"; psql -h $d/s -U postgres -Atc "select count(*), sum(abalance) - sum(abalance), md5(string_agg(aid::text, chr(44) order by aid)) from pgbench_accounts; select * from nowhere" 2>&1; $r $b/pg_ctl -D $d/s/data -m fast -w stop >/dev/null; echo $?; rm -r $d"####,
    ),
    (
        "redis under its benchmark, with a snapshot",
        r####"d=$(mktemp -d); cd $d; redis-server --port 0 --unixsocket $d/s --save "" --dir $d >/dev/null & p=$!; until redis-cli -s $d/s ping >/dev/null 2>&1; do sleep 0.05; done; redis-benchmark -s $d/s -q -n 20000 -r 5000 -t set,get,lpush,lpop,zadd >/dev/null; echo $?; redis-cli -s $d/s bgsave >/dev/null; redis-cli -s $d/s set answer 42; redis-cli -s $d/s get answer; redis-cli -s $d/s eval "return redis.call(\"get\", \"answer\") + 1" 0; redis-cli -s $d/s shutdown nosave; wait $p; echo $?; rm -r $d"####,
    ),
    (
        "nginx, two workers, loaded anew",
        r####"d=$(mktemp -d); mkdir $d/web; seq 2000 >$d/web/x; chmod -R 755 $d; printf "worker_processes 2; pid $d/pid; error_log $d/log; daemon off; events {} http { access_log off; gzip on; gzip_types *; client_body_temp_path $d/t1; proxy_temp_path $d/t2; fastcgi_temp_path $d/t3; uwsgi_temp_path $d/t4; scgi_temp_path $d/t5; server { listen unix:$d/s; root $d/web; } }" >$d/conf; nginx -p $d -c $d/conf 2>&1 & p=$!; until [ -S $d/s ]; do sleep 0.05; done; for i in $(seq 100); do curl -s --compressed --unix-socket $d/s http://x/x | md5sum; done | sort | uniq -c; curl -s -o /dev/null -w "%{http_code}\n" --unix-socket $d/s http://x/nothing; kill -HUP $p; sleep 0.5; curl -s --unix-socket $d/s http://x/x | md5sum; kill -QUIT $p; wait $p; echo $?; rm -r $d"####,
    ),
    (
        "git, with its collection of garbage",
        r####"d=$(mktemp -d); cd $d; git init -q .; git config user.email a@b; git config user.name a; export GIT_AUTHOR_DATE="2026-01-01T00:00:00Z" GIT_COMMITTER_DATE="2026-01-01T00:00:00Z"; for i in 1 2 3 4 5; do seq $i 20000 >f$i; git add .; git commit -q -m $i; done; git gc -q; git fsck; git rev-parse HEAD; rm -rf $d"####,
    ),
    (
        "make -j with a C++ compiler",
        r####"d=$(mktemp -d); cd $d; for i in 1 2 3 4; do printf "#include <map>\n#include <string>\nstd::map<std::string,int> m$i; int f$i() { return m$i[\"x\"]++; }\n" >f$i.cpp; done; printf "all: f1.o f2.o f3.o f4.o\n%%.o: %%.cpp\n\tg++ -O1 -c \$< -o \$@\n" >Makefile; make -s -j4; echo $?; md5sum *.o; rm -r $d"####,
    ),
    (
        "go, building and running",
        r####"d=$(mktemp -d); cd $d; printf "package main\nimport \"fmt\"\nfunc main() { m := map[int][]byte{}; for i := 0; i < 300000; i++ { m[i%%1000] = make([]byte, i%%3000) }; c := make(chan int); go func() { c <- len(m) }(); fmt.Println(<-c) }\n" >m.go; HOME=$d GOFLAGS=-mod=mod go run m.go; echo $?; chmod -R u+w $d; rm -r $d"####,
    ),
];

#[test]
fn large_programs_behave_alike_in_five_conditions() {
    let disk = SmallDisk::mount("96k");
    let (mut tried, mut full, mut absent) = (0, 0, Vec::new());
    for (name, line) in LINES {
        eprintln!("{name}");
        if !conditions::recorded_and_preloaded(line) {
            absent.push(name);
            continue;
        }
        tried += 1;
        for moment in [20, 300, 1500] {
            conditions::recorder_killed(line, Duration::from_millis(moment));
        }
        full += u64::from(disk.as_ref().is_some_and(|disk| conditions::disk_full(line, disk)));
    }
    assert!(absent.len() < 4, "not installed: {absent:?}; scripts/dev torture installs them");
    torture::passed(2, "programs with the same output bare, recorded, preloaded, and with a killed recorder", tried);
    torture::passed(2, "programs with the same output on a full disk", full);
}
