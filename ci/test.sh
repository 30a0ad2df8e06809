#!/usr/bin/env bash
# Builds the command (which carries the library), then runs all tests: those of the crates and of
# the whole pipeline by nextest, each in a process of its own, then doctests, fuzzing, loom and the
# guides. Arguments go to nextest, e.g. a name or `--profile full`.
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
# Everything random has a fixed seed here, so that what fails once fails always. `scripts/dev torture`
# takes fresh ones.
seed=1
if [ "${HEAPTAPE_FRESH_SEEDS:-0}" = 0 ]; then export PROPTEST_RNG_SEED=1; else seed=$(date +%s); fi
# The long forms read back a hundred million events: optimised.
profile=()
[ "${HEAPTAPE_FULL:-0}" = 0 ] || profile=(--release --profile full)
# Many tests of the pipeline wait for a process more than they compute: one more than there are
# processors takes two thirds of the time.
threads=${HEAPTAPE_TEST_THREADS:-$(($(nproc) + 1))}
# A failure of one part hides no other one.
status=0
cargo nextest run "${profile[@]}" "${all[@]}" --test-threads "$threads" "$@" || status=$?
# With a name, only what has it.
[ $# = 0 ] || exit "$status"
cargo test --quiet --doc "${all[@]}" || status=$?
# A minute of damaged files for all readers, with overflow checks; the tests' build has made the
# program. It needs one processor, so that the ring and the guides are tested beside it.
fuzzed=$(mktemp)
trap 'rm -f "$fuzzed"' EXIT
"$folder/debug/fuzz" 60 "$seed" > "$fuzzed" 2>&1 &
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
