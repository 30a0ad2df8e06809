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
# Many tests of the pipeline wait for a process more than they compute: two more than there are
# processors leave none of them idle.
threads=${HEAPTAPE_TEST_THREADS:-$(($(nproc) + 2))}
# A failure of one part hides no other one.
status=0
# With a name, only what has it.
if [ $# != 0 ]; then
  cargo nextest run "${profile[@]}" "${all[@]}" --test-threads "$threads" "$@"
  exit
fi
cargo nextest run "${profile[@]}" "${all[@]}" --no-run
# What needs a processor and nothing else, and ends when it is done, gets the time in which the tests
# wait: the ring in every order that the memory model allows.
said=$(mktemp -d)
trap 'rm -rf "$said"' EXIT
[ -z "${profile[*]}" ] || cargo build -p heaptape-tests --bin fuzz
nice -n 15 scripts/loom > "$said/loom" 2>&1 &
loom=$!
cargo nextest run "${profile[@]}" "${all[@]}" --test-threads "$threads" || status=$?
# A minute of damaged files for all readers, with overflow checks. It needs a processor, and the guides
# wait more than they compute.
"$folder/debug/fuzz" 60 "$seed" > "$said/fuzz" 2>&1 &
fuzz=$!
cargo test --quiet --doc "${all[@]}" > "$said/doc" 2>&1 &
documents=$!
# They print what they show.
scripts/guides || status=$?
# Sampled stacks of real programs, beside other unwinders.
python3 tests/stacks/check.py "$HEAPTAPE" "$folder/heaptape-tests/torture" --quick || status=$?
wait "$documents" || status=$?
wait "$fuzz" || status=$?
wait "$loom" || status=$?
cat "$said/doc" "$said/fuzz" "$said/loom"
exit "$status"
