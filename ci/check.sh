#!/usr/bin/env bash
# Format, lints, documentation. Formats what git knows: modules declared by macros are not seen by
# `cargo fmt`.
set -euo pipefail
cd "$(dirname "$0")/.."

git ls-files -z '*.rs' | xargs -0 rustfmt --check --edition 2024 --config-path rustfmt.toml
cargo clippy --quiet --workspace --all-targets -- -D warnings
# Heads of crates point at private modules on purpose: these pages are for the
# developers of heaptape.
export RUSTDOCFLAGS='-D warnings -A rustdoc::private-intra-doc-links'
document=(cargo doc --quiet --no-deps --document-private-items)
# The library and the command are both called heaptape, and so is the folder of their pages: not at
# the same time.
"${document[@]}" --workspace --exclude heaptape-parquet --exclude heaptape
"${document[@]}" --package heaptape
unset RUSTDOCFLAGS
# Licences and advisories, where the tool is installed; it needs the network.
if command -v cargo-deny >/dev/null 2>&1; then
  cargo deny --all-features check bans licenses sources
fi
echo 'check: format, lints and documentation are in order'
