//! Compares the view with the installed gprof, if there is one, on profiles of programs that the
//! installed compilers make here: lines, inlined functions, files without lines, Fortran.

use heaptape_compat::gprof::{self, Options};
use std::path::Path;
use std::process::{Command, Stdio};

const ONE: &str = "#include <stdlib.h>
static volatile long sink;
static int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
static void spin(int n) { for (int i = 0; i < n * 100; i++) sink += i; }
int odd(int n);
int even(int n) { spin(3); return n == 0 ? 1 : odd(n - 1); } int odd(int n) { spin(2); return n == 0 ? 0 : even(n - 1); }
static int compare(const void *a, const void *b) { sink++; return *(const int *)a - *(const int *)b; }
int main(void) {
  int v[100];
  for (int k = 0; k < 40; k++) { for (int i = 0; i < 100; i++) v[i] = (i * 7919) % 503; qsort(v, 100, sizeof v[0], compare); }
  return fib(20) + even(60) + v[3] < 0;
}
";

const FIRST: &str = "extern volatile long sink; int beta(int); int delta(int);
static int helper(int x) { for (int i = 0; i < 200; i++) sink += x ^ i; return x + 1; }
int alpha(int x) { return helper(x) + beta(x); }
int gamma_(int x) { return x > 0 ? delta(x - 1) + helper(x) : 0; }
int main(void) { int s = 0; for (int i = 0; i < 400; i++) s += alpha(i) + gamma_(3); return s == 42; }
";

const SECOND: &str = "volatile long sink; int gamma_(int);
static int helper(int x) { for (int i = 0; i < 100; i++) sink -= x * i; return x - 1; }
int beta(int x) { return helper(x) * 2; }
int delta(int x) { return helper(x) + gamma_(x); }
";

const CPP: &str = "#include <map>
#include <string>
#include <vector>
struct Shape { virtual ~Shape() {} virtual double area() const = 0; };
struct Square : Shape { double s; Square(double x) : s(x) {} double area() const override { return s * s; } };
template <class T> T sum(const std::vector<T> &v) { T s{}; for (const auto &x : v) s += x; return s; }
namespace ns { static int rec(int n) { return n < 2 ? n : rec(n - 1) + rec(n - 2); } }
int main() {
  std::map<std::string, double> m;
  std::vector<double> d;
  for (int k = 0; k < 60; k++) { Shape *s = new Square(k); m[std::to_string(k % 17)] += s->area(); delete s; }
  for (auto &p : m) d.push_back(p.second);
  return sum(d) + ns::rec(18) < 0;
}
";

const FORTRAN: &str = "module m
 implicit none
 integer :: total = 0
contains
 recursive integer function fib(n) result(r)
  integer, intent(in) :: n
  if (n < 2) then
   r = n
  else
   r = fib(n-1) + fib(n-2)
  end if
 end function
end module
program p
 use m
 implicit none
 integer :: x
 x = fib(18)
 call tail(x)
 if (x < 0) stop 1
contains
 subroutine tail(y)
  integer, intent(inout) :: y
  integer :: j
  do j = 1, 3000
   y = mod(y*3+j, 10007)
  end do
 end subroutine
end program
";

/// A name, the sources, and the command that makes each of them an object and links them.
type Program = (&'static str, &'static [(&'static str, &'static str)], &'static str);

const PROGRAMS: [Program; 7] = [
    ("plain", &[("one.c", ONE)], "gcc -no-pie -pg -g -O0 one.c"),
    ("inlined", &[("one.c", ONE)], "gcc -no-pie -pg -g -O2 one.c"),
    ("two files", &[("first.c", FIRST), ("second.c", SECOND)], "gcc -no-pie -pg -g -O2 first.c second.c"),
    (
        "one file without lines",
        &[("first.c", FIRST), ("second.c", SECOND)],
        "gcc -no-pie -pg -g -O1 -c first.c && gcc -pg -O1 -c second.c && gcc -no-pie -pg first.o second.o",
    ),
    // Of a header's lines in a unit of DWARF 5, gprof says that they are of the unit.
    ("C++", &[("shapes.cpp", CPP)], "g++ -no-pie -pg -g -gdwarf-4 -O0 shapes.cpp"),
    ("Fortran", &[("sums.f90", FORTRAN)], "gfortran -no-pie -pg -g -O0 sums.f90"),
    ("Fortran, inlined", &[("sums.f90", FORTRAN)], "gfortran -no-pie -pg -g -O2 sums.f90"),
];

const OPTIONS: [&str; 20] = [
    "-b",
    "-b -l",
    "-b -l -p -z",
    "-b -l -q -z",
    "-b -C",
    "-b -C -z",
    "-b -l -C",
    "-b -l -C -z",
    "-b -a",
    "-b -a -l",
    "-b -a -C",
    "-b -a -l -C",
    "-b -A",
    "-b -l -A",
    "-b -x -l -A",
    "-b -L -C",
    "-b -T -l",
    "-b -D -l",
    "-b -z",
    "-p -q",
];

#[test]
fn profiles_of_programs_are_listed_as_by_gprof() {
    if Command::new("gprof").arg("--version").output().is_err() {
        eprintln!("no gprof here: nothing compared");
        return;
    }
    let (mut compared, mut differ) = (0, Vec::new());
    for (name, sources, command) in PROGRAMS {
        let folder = tempfile::tempdir().unwrap();
        for (file, text) in sources {
            std::fs::write(folder.path().join(file), text).unwrap();
        }
        let run = |line: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", line]).current_dir(folder.path()).stderr(Stdio::null()).status().unwrap().success()
        };
        if !run(command) {
            eprintln!("{name}: {command}: not made here");
            continue;
        }
        assert!(run("./a.out"), "{name}");
        // Names of sources are found from the working directory.
        std::env::set_current_dir(folder.path()).unwrap();
        for options in OPTIONS {
            let arguments: Vec<String> = options.split(' ').chain(["a.out", "gmon.out"]).map(str::to_owned).collect();
            let real = Command::new("gprof").args(&arguments).env("LC_ALL", "C").output().unwrap();
            if String::from_utf8_lossy(&real.stderr).contains("somebody miscounted") {
                continue;
            }
            let mut ours = Vec::new();
            gprof::run(&Options::parse(&arguments).unwrap(), &mut ours, &mut std::io::sink()).unwrap();
            if ours != real.stdout {
                let texts = [&real.stdout, &ours].map(|text| String::from_utf8_lossy(text).into_owned());
                differ.push(format!("{name} {options}:\n{}\n--- ours\n{}", texts[0], texts[1]));
            }
            compared += 1;
        }
        std::env::set_current_dir(Path::new("/")).unwrap();
    }
    assert!(differ.is_empty(), "{} of {compared} differ: {}", differ.len(), differ.join("\n"));
    eprintln!("{compared} listings are equal");
}
