#!/usr/bin/env bash
# Each promise in docs/promises.md names the tests that keep it, as `module::test`, and each of
# these exists. The README has the same promises.
set -uo pipefail
cd "$(dirname "$0")/.."
bad=0
fail() { echo "promises: $*" >&2; bad=1; }

# One promise a line: its number, its words, its tests.
promises=$(awk '/^[0-9]+\. / { if (text) print text; text = $0; next } /^ / && text { sub(/^ +/, " "); text = text $0; next } { if (text) print text; text = "" }
  END { if (text) print text }' docs/promises.md)
count=$(grep -c . <<< "$promises")
[ "$count" -ge 9 ] || fail "docs/promises.md has $count promises; it made nine"
while IFS= read -r promise; do
  number=${promise%%.*}
  tests=$(grep -oE '`[a-z_]+::[a-z0-9_]+`' <<< "$promise" | tr -d '`')
  title=$(sed -E 's/^[0-9]+\. \*\*([^*]+)\.\*\*.*/\1/' <<< "$promise")
  grep -qF "$number. [$title](docs/promises.md)" README.md || fail "the README lacks promise $number, $title"
  [ -n "$tests" ] || fail "promise $number names no test"
  for test in $tests; do
    module=${test%%::*} name=${test##*::}
    git grep -qE "^ *fn $name\(\)" -- "*/$module.rs" "*/$module/mod.rs" "*/$module/tests.rs" || fail "promise $number: there is no test $test"
  done
done <<< "$promises"

[ "$bad" = 0 ] && echo "promises: $count, each with its tests"
exit "$bad"
