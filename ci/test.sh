#!/usr/bin/env bash
# Builds the command (which carries the library), then runs unit tests, format tests and the
# pipeline. Arguments go to the pipeline.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release -p heaptape
folder=${CARGO_TARGET_DIR:-target}
HEAPTAPE=$(cd "$folder/release" && pwd)/heaptape
export HEAPTAPE
# Backtraces of a failing test's own process say nothing about the program that it ran.
unset RUST_BACKTRACE
# The same packages each time: another choice has other features of their dependencies, and builds
# all of them again.
all=(--workspace --exclude heaptape-parquet)
# A failure of one test hides no other one.
status=0
cargo test --no-fail-fast "${all[@]}" || status=$?
# The long forms read back a hundred million events: optimised.
profile=()
[ "${HEAPTAPE_FULL:-0}" = 0 ] || profile=(--release)
cargo test "${profile[@]}" "${all[@]}" --test pipeline -- --test-threads="${HEAPTAPE_TEST_THREADS:-$(nproc)}" "$@" || status=$?
# A minute of damaged files for all readers, with overflow checks; the tests' build has made the
# program. It needs one processor, so that the ring and the guides are tested beside it.
fuzzed=$(mktemp)
trap 'rm -f "$fuzzed"' EXIT
"$folder/debug/fuzz" 60 > "$fuzzed" 2>&1 &
fuzz=$!
# The ring in every order that the memory model allows.
scripts/loom || status=$?
# The guides print what they show.
scripts/guides || status=$?
# Sampled stacks of real programs, beside other unwinders.
python3 tests/stacks/check.py "$HEAPTAPE" "$folder/heaptape-tests/torture" --quick || status=$?
wait "$fuzz" || status=$?
cat "$fuzzed"
exit "$status"
