#!/usr/bin/env python3
"""Compares printed lines with promised ones, for scripts/newcomer and scripts/guides.

A number stands for any number, also where the noun after it is singular, a bar of # and - for any bar, a unit of bytes or time for any other, a line of "…" for any number of lines, and "…" within a line for
any text. White space is folded. Run by itself, this module tests itself.
"""

import doctest
import re
import sys

ANY = "…"
NUMBER = re.compile(r"0x[0-9a-f]+|\d[\d,.]*")
# A bar in a row, as long as the value that it shows.
BAR = re.compile(r"(?<=\s)[#-]+(?=\s|$)")
# The noun after a number, which may be singular.
PLURAL = re.compile(r"(# (?:live )?[a-z]+)s\b")
UNIT = re.compile(r"# ?(?:[KMGT]?i?B|ns|us|µs|ms|s|min|h)\b")


def shape(line):
    """A line without what differs from one machine or run to the next."""
    return PLURAL.sub(r"\1", UNIT.sub("#", NUMBER.sub("#", BAR.sub("|", " ".join(line.split())))))


def matches(promised, printed):
    """Whether one printed line is the promised one."""
    if ANY not in promised:
        return promised == printed
    return re.fullmatch(".*".join(re.escape(text) for text in promised.split(ANY)), printed) is not None


def first_difference(promised, printed):
    """The promised line that was not printed where it belongs, or None.

    >>> first_difference(["total 3 KiB", "…", "end"], ["total  4.5 MiB", "a", "b", "end"])
    >>> first_difference(["total 3 KiB", "…", "end"], ["total 4.5 MiB", "end", "more"])
    'end'
    >>> first_difference(["none lost"], ["# lost"])
    'none lost'
    >>> first_difference(["…", "a", "b"], ["b", "a", "x", "b"])
    'a / b'
    >>> first_difference(["a"], ["a", "error"])
    '(the end, not: error)'
    >>> first_difference(["in …, by 3"], ["in here, by 4"])
    >>> first_difference(["3 KiB ###--"], ["4 MiB #"])
    >>> first_difference(["3 KiB  5%  ### files"], ["4 MiB 6% ## files"])
    >>> first_difference(["1 resize, 3 live blocks"], ["2 resizes, 1 live block"])
    """
    promised, printed = [shape(line) for line in promised], [shape(line) for line in printed]
    while promised and not promised[-1]:
        promised.pop()
    while printed and not printed[-1]:
        printed.pop()
    position, index = 0, 0
    while index < len(promised):
        anchored = promised[index] != ANY
        index += not anchored
        run = []
        while index < len(promised) and promised[index] != ANY:
            run.append(promised[index])
            index += 1
        last = index == len(promised)
        starts = [position] if anchored else range(position, len(printed) - len(run) + 1)
        if last and run and not anchored:
            starts = [len(printed) - len(run)] if len(printed) - len(run) >= position else []
        for start in starts:
            if len(printed) >= start + len(run) and all(map(matches, run, printed[start:start + len(run)])):
                position = start + len(run)
                break
        else:
            if run:
                return missing_line(run, printed[position:])
    if promised and promised[-1] != ANY and position != len(printed):
        return f"(the end, not: {printed[position]})"
    return None


def missing_line(run, printed):
    """The first line of `run` that is nowhere in `printed`, else the whole run."""
    for line in run:
        if not any(matches(line, other) for other in printed):
            return line
    return " / ".join(run)


def is_sound():
    """Whether the examples of this module hold."""
    return doctest.testmod(sys.modules[__name__]).failed == 0


if __name__ == "__main__":
    sys.exit(0 if is_sound() else 1)
