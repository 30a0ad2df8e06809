"""The programs of `scripts/dev stacks`: from Debian, PyPI and npm, of many languages, compilers and linkers."""

import collections

Program = collections.namedtuple("Program", "name needs line setup is_quick status")


def program(name, needs, line, setup="", is_quick=False, status=0):
    return Program(name, needs.split(), line, setup, is_quick, status)


SOURCE = r"""cat > a.c <<'X'
#include <stdio.h>
#include <stdlib.h>
struct s { int a; double b; char c[40]; };
static int f(struct s *p, int n) { return n ? f(p, n - 1) + p->a : 0; }
int main(void) { struct s *p = calloc(1, sizeof *p); printf("%d\n", f(p, 3)); free(p); return 0; }
X
cat > a.cpp <<'X'
#include <iostream>
#include <map>
#include <string>
int main() { std::map<std::string, int> m; m["a"] = 1; std::cout << m.size() << '\n'; }
X
"""

PROGRAMS = [
    program("python3", "/usr/bin/python3", "/usr/bin/python3 -c 'import json, decimal, re; [json.loads(json.dumps({str(i): [i] * 20})) for i in range(300)]'", is_quick=True),
    program("perl", "perl", """perl -e 'my %h; $h{$_ % 700} .= "x$_" for 1 .. 20000; print scalar(keys %h), "\\n"; print join(",", sort { $a <=> $b } keys %h), "\\n"'""", is_quick=True),
    program("sqlite3", "sqlite3", "sqlite3 :memory: 'create table t(a, b); with recursive c(x) as (select 1 union all select x + 1 from c where x < 3000) insert into t select x, hex(x) from c; create index i on t(b); select count(*), max(b) from t group by a % 7;'", is_quick=True),
    program("git", "git", "git init -q r; cd r; for i in 1 2 3; do echo $i > f$i; git add .; git -c user.name=a -c user.email=a@b commit -q -m $i; done; git log --stat; git gc -q", is_quick=True),
    program("make", "make", "make -n all", r"""for i in $(seq 200); do printf 'all: t%d\nt%d: $(wildcard *.c)\n\techo $(patsubst %%.c,%%.o,a.c b%d.c)\n' $i $i $i; done > Makefile""", is_quick=True),
    program("bc", "bc", "echo 'scale = 60; define f(x) { if (x < 2) return (1); return (x * f(x - 1)) }; f(60); 4 * a(1); e(2)' | bc -l", is_quick=True),
    program("lsof", "lsof", "lsof -p $$ > /dev/null; true", is_quick=True),
    program("ctags", "ctags", "ctags -f - /usr/include/stdlib.h /usr/include/c++/*/bits/stl_vector.h | wc -l", is_quick=True),
    program("openssl", "openssl", "openssl req -x509 -newkey rsa:1024 -nodes -keyout k -out c -subj /CN=a -days 1; openssl x509 -in c -noout -text", is_quick=True),
    program("xz", "xz", "xz -k -T2 f; xz -t f.xz", "seq 200000 > f", is_quick=True),
    program("bash", "bash", "bash -c 'for i in {1..300}; do a[$i]=${i//1/x}; done; echo ${#a[@]} $(echo sub)'", is_quick=True),
    program("gcc", "gcc", "gcc -O2 -g a.c -o a", SOURCE, is_quick=True),
    program("luajit", "luajit", "luajit -e 'local ffi = require(\"ffi\") ffi.cdef(\"void *malloc(size_t); void free(void *);\") local t = {} for i = 1, 100000 do local p = ffi.C.malloc(i % 100 + 1) ffi.C.free(p) t[i % 5000] = {i, tostring(i)} end print(#t)'", is_quick=True),
    program("node", "node", "node -e 'const a = []; for (let i = 0; i < 50000; i++) a.push(Buffer.from(String(i))); console.log(JSON.parse(JSON.stringify(a.length)))'", is_quick=True),
    program("known stacks, coroutines, recursion, exceptions", "gcc g++", "for p in known_stacks coroutines crosses deep exceptions; do ./$p > /dev/null; done", """
for p in known_stacks coroutines crosses deep exceptions; do
  f=$(echo $STACKS_SOURCES/$p.c*); case $f in *.cpp) c=g++ ;; *) c=gcc ;; esac
  $c -O2 -fomit-frame-pointer -fno-builtin -fno-optimize-sibling-calls -D_GNU_SOURCE -pthread -o $p $f
done"""),
    program("g++", "g++", "g++ -O1 -g a.cpp -o a", SOURCE),
    program("clang", "clang", "clang -O2 -g -c a.c; clang -O2 -c a.cpp", SOURCE),
    program("ruby", "ruby", "ruby -rjson -e 'h = {}; 5000.times { |i| h[i.to_s] = [i] * 5 }; puts JSON.generate(h).size, h.to_a.sort_by { |a, b| b }.size'"),
    program("php", "php", "php -r '$a = []; for ($i = 0; $i < 20000; $i++) $a[] = [\"k$i\" => str_repeat(\"x\", $i % 50)]; echo count($a), strlen(serialize($a)), preg_match(\"/x+/\", serialize($a));'"),
    program("java", "java", "java -Xmx256m -cp . A", r"""cat > A.java <<'X'
import java.util.*;
public class A { public static void main(String[] a) throws Exception { Map<Integer, String> m = new TreeMap<>(); for (int i = 0; i < 100000; i++) m.put(i, "x" + i);
  java.util.zip.Deflater d = new java.util.zip.Deflater(); d.setInput(m.toString().getBytes()); d.finish(); byte[] b = new byte[1 << 20]; System.out.println(m.size() + " " + d.deflate(b)); } }
X
javac A.java"""),
    program("go with cgo", "go gcc", "./g", r"""cat > g.go <<'X'
package main

/*
#include <stdlib.h>
#include <string.h>
static char *inner(int n) { char *p = malloc(n + 1); memset(p, 'x', n); p[n] = 0; return p; }
static char *outer(int n) { char *p = inner(n); if (n % 3) return p; free(p); return inner(n / 2); }
*/
import "C"
import ("fmt"; "sync"; "unsafe")

func main() {
	var w sync.WaitGroup
	for t := 0; t < 4; t++ {
		w.Add(1)
		go func() { defer w.Done(); for i := 0; i < 3000; i++ { p := C.outer(C.int(i)); C.free(unsafe.Pointer(p)); q := C.CString("go"); C.free(unsafe.Pointer(q)) } }()
	}
	w.Wait()
	fmt.Println("done")
}
X
HOME=$PWD GOCACHE=$PWD/cache GOFLAGS=-mod=mod go build -o g g.go"""),
    program("rust", "rustc", "./r", r"""cat > r.rs <<'X'
use std::collections::{BTreeMap, HashMap};
fn grow(n: usize) -> Vec<String> { (0..n).map(|i| format!("{i:>9}")).collect() }
fn main() {
    let t: Vec<_> = (0..3).map(|k| std::thread::spawn(move || { let mut m = BTreeMap::new(); for i in 0..2000 { m.insert(i * k, grow(i % 9)); } m.len() })).collect();
    let mut h = HashMap::new();
    for (i, s) in grow(5000).into_iter().enumerate() { h.insert(s, Box::new(i)); }
    println!("{} {:?}", h.len(), t.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>());
}
X
HOME=$STACKS_HOME rustc -O -C debuginfo=0 r.rs"""),
    program("redis", "redis-server redis-cli", "redis-server --port 0 --unixsocket $PWD/s --save '' > log & sleep 1; for i in 1 2 3; do redis-cli -s s eval \"for i = 1, 3000 do redis.call('set', 'k' .. i, i); redis.call('lpush', 'l', i) end return 1\" 0; done; redis-cli -s s shutdown nosave; wait"),
    program("gdb", "gdb gcc", "gdb -nx -batch -ex 'break f' -ex 'info functions f' -ex 'ptype struct s' -ex 'disassemble main' a", SOURCE + "gcc -g a.c -o a"),
    program("vim", "vim", "vim -u NONE -es -c 'call map(range(3000), \"setline(v:val + 1, repeat(string(v:val), 5))\")' -c '%s/1/one/g' -c 'g/9/m0' -c 'syntax on' -c 'wq! f' || true"),
    program("emacs", "emacs", "emacs -Q --batch --eval '(with-temp-buffer (dotimes (i 3000) (insert (format \"%d \" i))) (message \"%d %d\" (buffer-size) (length (split-string (buffer-string)))))'"),
    program("gs", "gs", "gs -q -dBATCH -dNOPAUSE -sDEVICE=png16m -r40 -sOutputFile=o.png f.ps", "printf '%%!\\n/Times-Roman findfont 40 scalefont setfont 50 50 moveto (heap) show 100 200 300 400 rectfill showpage\\n' > f.ps"),
    program("ffmpeg", "ffmpeg", "ffmpeg -v error -f lavfi -i testsrc=duration=1:size=128x96:rate=10 -c:v mpeg4 -y o.avi; ffmpeg -v error -i o.avi -f null -"),
    program("cmake and ninja", "cmake ninja gcc", "cmake -G Ninja . && ninja", SOURCE + "printf 'cmake_minimum_required(VERSION 3.10)\\nproject(a C)\\nadd_executable(a a.c)\\n' > CMakeLists.txt"),
    program("R", "Rscript", "Rscript -e 'x <- lapply(1:2000, function(i) rnorm(i %% 50)); print(summary(lm(dist ~ speed, cars))); print(length(x))'"),
    program("octave", "octave-cli", "octave-cli --no-init-file --eval 'a = rand(60); b = a * inv(a); c = {}; for i = 1:200, c{i} = num2str(i); end; disp(size(b)); disp(numel(strjoin(c)))'"),
    program("postgres", "/usr/lib/postgresql/15/bin/postgres setpriv", "setpriv --reuid postgres --clear-groups /usr/lib/postgresql/15/bin/postgres --single -D $PWD/d postgres < q", "chmod 755 ../.. .. .; chown postgres .; setpriv --reuid postgres --clear-groups /usr/lib/postgresql/15/bin/initdb -D d; printf \"create table t as select i, md5(i::text) m from generate_series(1, 5000) i;\\nselect count(*), max(m) from t group by i %% 7;\\n\" > q"),
    program("guile", "guile", "guile --no-auto-compile -c '(define l (map (lambda (i) (number->string (expt 7 i))) (iota 2000))) (display (length l))'"),
    program("tcl", "tclsh", "echo 'for {set i 0} {$i < 20000} {incr i} {lappend l [string repeat x [expr {$i % 30}]]; dict set d $i $l0($i)}' > /dev/null; printf 'for {set i 0} {$i < 20000} {incr i} {lappend l [string repeat x [expr {$i %% 30}]]; set a($i) $i}; puts [llength [lsort $l]]; puts [regexp {x+} $l]\\n' > t.tcl; tclsh t.tcl"),
    program("gawk", "gawk", "gawk 'BEGIN { for (i = 0; i < 20000; i++) a[i % 999] = a[i % 999] i; print length(a); n = asorti(a, b); print n, gensub(/1+/, \"x\", \"g\", a[1]) }'"),
    program("imagemagick", "convert", "convert -size 64x64 plasma:red-blue -resize 50% -rotate 30 o.png; convert o.png o.jpg"),
    program("gnuplot", "gnuplot", "gnuplot -e 'set term dumb; plot sin(x), x**2'"),
    program("prolog", "swipl", "swipl -g 'numlist(1, 20000, L), foldl([X, A, B]>>(B is A + X), L, 0, S), format(\"~w~n\", [S]), halt'"),
    program("ocaml", "ocamlopt gcc", "./o", r"""cat > o.ml <<'X'
let rec build n acc = if n = 0 then acc else build (n - 1) (Array.make (n mod 3000) n :: acc)
let () = let l = build 5000 [] in let b = Buffer.create 16 in List.iter (fun a -> Buffer.add_string b (string_of_int (Array.length a))) l; print_int (Buffer.length b)
X
ocamlopt -o o o.ml"""),
    program("tcc, running", "tcc", "tcc -run t.c", r"""cat > t.c <<'X'
#include <stdio.h>
#include <stdlib.h>
static int less(const void *a, const void *b) { free(malloc(9)); return *(const int *)a - *(const int *)b; }
static char *inner(int n) { return malloc(n + 1); }
static void outer(int n) { int v[] = {3, 1, 2}; qsort(v, 3, sizeof *v, less); free(inner(n)); }
int main(void) { for (int i = 0; i < 2000; i++) outer(i % 99); puts("done"); return 0; }
X"""),
    program("pypy", "pypy3", "pypy3 -c 'import json; print(len(json.dumps([{str(i): [i] * 9} for i in range(20000)])))'"),
    program("sbcl", "sbcl", "sbcl --noinform --eval '(progn (print (length (loop for i below 10000 collect (format nil \"~a\" i)))) (quit))'"),
    program("erlang", "erl", "erl -noshell -eval 'L = [integer_to_list(I) || I <- lists:seq(1, 20000)], io:format(\"~p~n\", [length(lists:sort(L))]), halt().'"),
    program("groff", "groff", "printf '.TH A 1\\n.SH NAME\\nheap \\\\- a heap\\n' | groff -man -Tascii"),
    program("wkhtmltopdf", "wkhtmltopdf", "QT_QPA_PLATFORM=offscreen wkhtmltopdf -q f.html f.pdf", "echo '<table><tr><td>heap<td><b>tape</b></table><script>document.write(1 + 1)</script>' > f.html"),
    program("python wheels: numpy, lxml, Pillow, orjson", "/usr/bin/python3 +py/numpy", """PYTHONPATH=$STACKS_PACKAGES/py /usr/bin/python3 -c '
import numpy, orjson, io
from lxml import etree
from PIL import Image
a = numpy.random.rand(60, 60); numpy.linalg.svd(a); numpy.fft.fft(a.ravel()); sorted(str(x) for x in a.ravel())
t = etree.fromstring("<a>" + "<b c=\\"1\\">x</b>" * 500 + "</a>"); etree.tostring(etree.XSLT(etree.XML("<xsl:stylesheet version=\\"1.0\\" xmlns:xsl=\\"http://www.w3.org/1999/XSL/Transform\\"/>"))(t)); t.xpath("//b[@c=1]")
orjson.loads(orjson.dumps({str(i): [i] * 9 for i in range(500)}))
f = io.BytesIO(); Image.new("RGB", (64, 64)).resize((32, 32)).save(f, "PNG"); Image.open(io.BytesIO(f.getvalue())).load()'"""),
    program("python wheels: polars, duckdb", "/usr/bin/python3 +py/polars", """PYTHONPATH=$STACKS_PACKAGES/py POLARS_MAX_THREADS=2 /usr/bin/python3 -c '
import duckdb, polars
c = duckdb.connect(config={"threads": 2}); c.execute("create table t as select i, md5(i::varchar) m from range(20000) s(i)"); print(c.execute("select i % 7, count(*), max(m) from t group by 1").fetchall())
d = polars.DataFrame({"a": list(range(20000)), "b": [str(i % 99) for i in range(20000)]}); print(d.group_by("b").agg(polars.col("a").sum()).sort("b").height)'"""),
    program("node of npm", "+npm/node_modules/node/bin/node", "$STACKS_PACKAGES/npm/node_modules/node/bin/node -e 'const z = require(\"zlib\"); const a = []; for (let i = 0; i < 20000; i++) a.push(Buffer.from(String(i))); console.log(z.gzipSync(JSON.stringify(a)).length, require(\"crypto\").generateKeyPairSync(\"ec\", {namedCurve: \"P-256\"}).publicKey.type)'"),
    program("node addons: sharp, swc", "node +npm/node_modules/sharp +npm/node_modules/@swc/core", """cd $STACKS_PACKAGES/npm; node -e '
const sharp = require("sharp"), swc = require("@swc/core");
console.log(swc.transformSync("const f = async (a) => { await a?.b ?? 1; class X { #y = 2 } }; f()", {jsc: {target: "es5"}}).code.length);
sharp({create: {width: 64, height: 64, channels: 3, background: "red"}}).resize(20).blur(2).webp().toBuffer().then((b) => console.log(b.length));'"""),
    program("chromium", "chromium", "chromium --headless --no-sandbox --disable-gpu --single-process --dump-dom 'data:text/html,<p>heap<script>document.body.append(1)</script>' || true"),
]
