#!/usr/bin/env bash
# Lints of the repository that no compiler checks: length of files, which files may contain unsafe
# code, what the preload library is made of, no notes to self, no path of a developer's machine, and
# no script that nothing calls.
set -uo pipefail
cd "$(dirname "$0")/.."
bad=0
fail() { echo "house rules: $*" >&2; bad=1; }

# Length: think at 600 lines, never 900. Tests in files of their own do not count.
while IFS= read -r -d '' file; do
  case $file in */tests.rs | */tests/* | tests/*) continue ;; esac
  lines=$(wc -l < "$file")
  if [ "$lines" -gt 900 ]; then fail "$file has $lines lines; 900 is the most"
  elif [ "$lines" -gt 600 ]; then echo "house rules: warning: $file has $lines lines; think of splitting it" >&2
  fi
done < <(git ls-files -z '*.rs' '*.sh' 'scripts/*')

# Unsafe code: blocks, functions, implementations and extern blocks, in the listed files and their
# tests only.
allowed=$(sed 's/#.*//; s/[[:space:]].*//; /^$/d' ci/unsafe-files.txt)
while IFS= read -r file; do
  case $file in */tests.rs | */tests/*) continue ;; esac
  grep -qxF "$file" <<< "$allowed" || fail "$file has unsafe code and is not in ci/unsafe-files.txt"
done < <(git grep -lE '\bunsafe[[:space:]]+(\{|fn|impl|extern|trait)' -- '*.rs')
while IFS= read -r file; do
  git grep -qE '\bunsafe\b' -- "$file" 2>/dev/null || fail "ci/unsafe-files.txt lists $file, which has no unsafe code"
done <<< "$allowed"

# The preload library: no_std, and these packages only.
grep -q 'no_std' preload/src/lib.rs || fail 'the preload library must be no_std'
git grep -nE 'extern crate alloc|use alloc::' -- preload/src preload/wire/src && fail 'the preload library and wire know no alloc'
found=$(cargo tree --quiet -p heaptape-preload -e normal,no-proc-macro --prefix none --format '{p}' 2>/dev/null | awk '{ print $1 }' | sort -u)
[ "$found" = "$(sed 's/#.*//; /^[[:space:]]*$/d' ci/preload-dependencies.txt | sort -u)" ] ||
  fail "the preload library's packages differ from ci/preload-dependencies.txt:"$'\n'"$found"

# Every library and command crate but preload, wire and recorder forbids unsafe code.
for lib in formats/src/lib.rs recorder/daemon/src/lib.rs analyzer/src/lib.rs analyzer/reports/src/lib.rs analyzer/compat/src/lib.rs cli/src/lib.rs cli/src/main.rs analyzer/parquet/src/main.rs tests/src/lib.rs; do
  grep -q 'forbid(unsafe_code)' "$lib" || fail "$lib forbids no unsafe code"
done

# Golden files of equal contents are links to one file. Empty files and frozen recordings are not.
twins=$(git ls-files -s -- tests/golden ':!tests/golden/tape' |
  awk '$1 != "120000" && $2 !~ /^e69de29b/ && seen[$2]++ { print $4 }')
[ -z "$twins" ] || fail "golden files with the contents of another one; link them: "$'\n'"$twins"

# Notes to self, tests that do not run.
git grep -nIE '\b(TOD[O]|FIXM[E]|XX[X]|HAC[K])\b|\b(tod[o]|unimplemente[d]|db[g])!|#\[ignor[e]' -- ':!tests/golden' ':!*.md' ':!Cargo.toml' &&
  fail 'notes to self and tests that do not run are not committed'

# Paths of anybody's machine.
git grep -nIE '(^|[^[:alnum:]_.])/(wor[k]|roo[t]|home/(user|ubuntu|runner))/' -- ':!tests/golden' &&
  fail 'paths of a machine are not committed'

# The toolchain that is pinned is the one that the manifest promises.
promised=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
pinned=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
case $pinned in "$promised" | "$promised".*) ;; *) fail "rust-toolchain.toml pins $pinned, Cargo.toml promises $promised" ;; esac

# Every script in ci and scripts is executable, and something calls it.
for script in ci/*.sh scripts/*; do
  [ -x "$script" ] || fail "$script is not executable"
  git grep -qF "$script" -- . ":!$script" || fail "nothing calls $script"
done

# Each golden folder, each target program and each bench file is named by something.
for source in tests/programs/*.c tests/programs/*.cpp tests/programs/*.rs; do
  name=$(basename "$source")
  git grep -qE "\"(${name%.*}|$name)\"|/$name" -- 'tests/*.rs' 'tests/bench' 'tests/programs' ":!$source" || fail "no test uses $source"
done

# What the README promises is tested.
ci/promises.sh || bad=1

[ "$bad" = 0 ] && echo 'house rules: kept'
exit "$bad"
