#!/usr/bin/env bash
# The built preload library: what it imports, exports, weighs, and asks of the loader.
set -uo pipefail
cd "$(dirname "$0")/.."
bad=0
fail() { echo "audit: $*" >&2; bad=1; }

cargo build --quiet --profile preload -p heaptape-preload || exit 1
library=${CARGO_TARGET_DIR:-target}/preload/libheaptape.so

# Imports, without versions: no allocator, no stdio, no __tls_get_addr can hide here.
imports=$(nm -D --undefined-only "$library" | awk '{ print $NF }' | sed 's/@.*//' | sort -u)
wanted=$(sed 's/#.*//; s/[[:space:]].*//; /^$/d' ci/preload-imports.txt | sort -u)
[ "$imports" = "$wanted" ] || { fail 'the imports differ from ci/preload-imports.txt'; diff <(echo "$wanted") <(echo "$imports") >&2; }

# Exports: what preload/src says, row by row, and nothing else.
exports=$(nm -D --defined-only "$library" | awk '{ print $NF }' | sort -u)
function='s/^ *pub.* unsafe extern "C" fn ([A-Za-z_]+)\(.*/\1/p'
wanted=$({
  # operators! { NUMBER SYMBOL … }
  awk '/^operators! \{/ { on = 1; next } /^\}/ { on = 0 } on && $2 ~ /^_Z/ { print $2 }' preload/src/hooks.rs
  # exports! { NAME COUNT BODY SAMPLED; … }
  awk '/^entry::exports! \{/ { on = 1; next } /^\}/ { on = 0 } on && NF >= 3 { print $1 }' preload/src/hooks.rs
  # exec_functions! { NUMBER NAME … }
  awk '/^exec_functions! \{/ { on = 1; next } /^\}/ { on = 0 } on && NF >= 5 { print $2 }' preload/src/process/exec.rs
  # mapping_functions! { NUMBER NAME … }
  awk '/^mapping_functions! \{/ { on = 1; next } /^\}/ { on = 0 } on && NF >= 3 { print $2 }' preload/src/hooks/mappings.rs
  # functions that need nothing of their caller's state
  sed -nE '/ mod plain /,$ '"$function" preload/src/hooks/entry.rs
  sed -nE "$function" preload/src/process/exports.rs
  # functions to which programs report
  sed -nE '/ mod exported_reports /,$ '"$function" preload/src/hooks/reported.rs
} | sort -u)
[ "$exports" = "$wanted" ] || { fail 'the exports differ from the hook table'; diff <(echo "$wanted") <(echo "$exports") >&2; }

# Versions: nothing newer than the oldest libc that is promised (2.28), with room to spare; 2.17 is
# the newest that is used.
newest=$(objdump -T "$library" | grep -oE 'GLIBC_[0-9.]+' | sed 's/GLIBC_//' | sort -V | tail -1)
[ "$(printf '%s\n2.17\n' "$newest" | sort -V | tail -1)" = 2.17 ] || fail "it needs glibc $newest; 2.17 is the most"

# Weight: code and data that are read from the file.
most=180000
weight=$(size "$library" | awk 'NR == 2 { print $1 + $2 }')
[ "$weight" -le "$most" ] || fail "$weight bytes of code and data; $most is the most"

headers=$(readelf -lW "$library")
dynamic=$(readelf -dW "$library")
tls=$(awk '$1 == "TLS" { print $6 }' <<< "$headers")
[ $((tls)) -le 64 ] || fail "$((tls)) bytes in each thread's static block; 64 is the most"
grep -q NODELETE <<< "$dynamic" || fail 'it can be unloaded'
grep -qE 'BIND_NOW|FLAGS.*NOW' <<< "$dynamic" || fail 'it is bound lazily'
grep -q GNU_RELRO <<< "$headers" || fail 'its tables stay writable'
grep -q TEXTREL <<< "$dynamic" && fail 'it relocates its code'
grep -E 'RPATH|RUNPATH' <<< "$dynamic" && fail 'it searches folders of its own'
awk '$1 == "GNU_STACK" { if ($7 ~ /E/) exit 1 }' <<< "$headers" || fail 'it wants an executable stack'
awk '$1 == "LOAD" && /RWE/ { exit 1 }' <<< "$headers" || fail 'it has memory to write and to run'
needed=$(grep NEEDED <<< "$dynamic" | sed 's/.*\[\(.*\)\]/\1/')
[ "$needed" = libc.so.6 ] || fail "it needs $needed"

# The standalone library is loaded by nothing that could resolve a name or provide thread-local
# storage.
cargo rustc --quiet --profile preload -p heaptape-preload --lib --features standalone --target-dir target/standalone || exit 1
standalone=target/standalone/preload/libheaptape.so
[ -z "$(nm -D --undefined-only "$standalone")" ] || fail 'the standalone library imports names'
readelf -dW "$standalone" | grep -q NEEDED && fail 'the standalone library needs others'
readelf -lW "$standalone" | grep -qE '^ +TLS' && fail 'the standalone library has thread-local variables'

[ "$bad" = 0 ] && echo "audit: $(wc -l <<< "$imports") imports, $(wc -l <<< "$exports") exports, $weight bytes, $((tls)) bytes a thread"
exit "$bad"
