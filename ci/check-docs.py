#!/usr/bin/env python3
"""Follows the links of the documents inside of the repository, compares the book's table of contents with its pages, and counts the
words for users, which are all but those of the part on specifications."""

import glob
import os
import re
import sys

MOST_WORDS = 35_000


def text_of(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def anchors(text):
    """The anchors of a page as mdBook and GitHub make them."""
    found = {}
    for title in re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), flags=re.M):
        title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title.strip())
        name = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        found[name] = found.get(name, 0) + 1
    return {name if not number else f"{name}-{number}" for name, count in found.items() for number in range(count)}


def main():
    bad = []
    pages = sorted(glob.glob("docs/**/*.md", recursive=True))
    for page in pages + glob.glob("*.md") + glob.glob("packaging/**/*.md", recursive=True):
        text = re.sub(r"^```.*?^```|`[^`\n]*`", "", text_of(page), flags=re.S | re.M)
        for link in re.findall(r"\]\(([^)\s]+)", text) + re.findall(r'(?:src|href)="([^"]+)"', text):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            if not os.path.exists(target):
                bad.append(f"{page}: {link}: there is no {target}")
            elif anchor and target.endswith(".md") and anchor not in anchors(text_of(target)):
                bad.append(f"{page}: {link}: {target} has no such title")
    summary = text_of("docs/SUMMARY.md")
    users, _, rest = summary.partition("# Specifications")
    listed = [os.path.join("docs", path) for path in re.findall(r"\]\(([^)]+)\)", summary)]
    bad += [f"docs/SUMMARY.md lacks {page}" for page in pages if page not in listed + ["docs/SUMMARY.md"] and "/examples/" not in page]
    words = sum(len(text_of(os.path.join("docs", path)).split()) for path in re.findall(r"\]\(([^)]+)\)", users))
    if not rest or words > MOST_WORDS:
        bad.append(f"docs: {words} words for users, {MOST_WORDS} are the most")
    lines = text_of("README.md").count("\n")
    if lines > 120:
        bad.append(f"README.md has {lines} lines, 120 are the most")
    if bad:
        sys.exit("\n".join(bad))
    print(f"documents: links are whole, {words} words for users")


main()
