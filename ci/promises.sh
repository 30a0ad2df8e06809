#!/usr/bin/env bash
# Each promise of the README names the tests that keep it, as `module::test`, and each of these
# exists.
set -uo pipefail
cd "$(dirname "$0")/.."
bad=0
fail() { echo "promises: $*" >&2; bad=1; }

# One promise a line: its number, its words, its tests.
promises=$(awk '/^## Promises/ { on = 1; next } /^## / { on = 0 } !on { next }
  /^[0-9]+\. / { if (text) print text; text = $0; next } /^ / && text { sub(/^ +/, " "); text = text $0; next } { if (text) print text; text = "" }
  END { if (text) print text }' README.md)
count=$(grep -c . <<< "$promises")
[ "$count" -ge 9 ] || fail "the README has $count promises; it made nine"
while IFS= read -r promise; do
  number=${promise%%.*}
  tests=$(grep -oE '`[a-z_]+::[a-z0-9_]+`' <<< "$promise" | tr -d '`')
  [ -n "$tests" ] || fail "promise $number names no test"
  for test in $tests; do
    module=${test%%::*} name=${test##*::}
    git grep -qE "^ *fn $name\(\)" -- "*/$module.rs" "*/$module/mod.rs" "*/$module/tests.rs" || fail "promise $number: there is no test $test"
  done
done <<< "$promises"

[ "$bad" = 0 ] && echo "promises: $count, each with its tests"
exit "$bad"
