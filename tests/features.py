#!/usr/bin/env python3
"""Keeps the last column of docs/features.md and docs/threats.md in step with the tests.

A test belongs to a row if its name begins with the row's id: z2_..., c1_c2_..., r6_and_r7_... for features, and
attack_th4_... for threats. The column of a row that tests are named after is written from their names. The column of
any other row stays, and its tests must exist. An id that a test's name begins with has a row, and what the documents
link to exists.

    tests/features.py           writes the columns
    tests/features.py --check   writes nothing; fails if a column is empty or names a test that does not exist, if a test
                                names a row that does not exist, and if a link leads nowhere
"""
import collections
import os.path
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Maximum number of tests named in a row.
SHOWN = 3
FOLDERS = ("agent", "bench", "certs", "cli", "gateway", "proto", "tests")


def sources():
    for folder in FOLDERS:
        yield from sorted((ROOT / folder).rglob("*.rs"))


# How the name of a test begins: with ids of features, or with ids of threats.
IDS = r"(?:attack_th|[a-z])[0-9]+_"

# What looks like an id and is a word.
WORDS = {"H2", "P256"}


def rows_of(name):
    """The ids that a test's name begins with."""
    last = next((part for part in name.split("::") if re.match(IDS, part)), "")
    id_of = r"(?:and_)?(th[0-9]+)_" if last.startswith("attack_") else r"(?:and_)?([a-z][0-9]+)_"
    last = last.removeprefix("attack_")
    while found := re.match(id_of, last):
        yield found[1].upper()
        last = last[found.end():]


def read_tests():
    by_row, words = collections.defaultdict(set), set()
    for path in sources():
        text = path.read_text()
        words.update(re.findall(r"\w+", text))
        tests = re.findall(rf"\bfn ({IDS}\w+)\(", text)
        # End-to-end tests, whose names are texts.
        tests += re.findall(rf'"([a-z0-9_]+::{IDS}\w+)[":]', text)
        for name in tests:
            for row in set(rows_of(name)) - WORDS:
                by_row[row].add(name)
    return by_row, words


def column(names):
    # End-to-end tests first.
    ordered = sorted(names, key=lambda name: ("::" not in name, name))
    shown = ", ".join(f"`{name}`" for name in ordered[:SHOWN])
    return shown + (", …" if len(ordered) > SHOWN else "")


def written(path, columns, write, by_row, words, faults):
    """The file's text with its columns written; what is wrong with it goes to `faults`."""
    lines = []
    for line in path.read_text().splitlines():
        found = re.match(r"\| ([A-Z]+[0-9]+) \|", line)
        if found:
            cells = [cell.strip() for cell in line.strip("| ").split("|")]
            cells += [""] * (columns - len(cells))
            names = by_row.get(found[1])
            if names and write:
                cells[-1] = column(names)
            if not cells[-1]:
                faults.append(f"{path.relative_to(ROOT)}: row {found[1]} names no test")
            line = "| " + " | ".join(cells) + " |"
        if line.startswith("|"):
            for name in re.findall(r"`([a-z0-9_:]+_[a-z0-9_:]+)`", line.rsplit(" | ", 1)[-1]):
                last = name.split("::")[-1]
                if last not in words:
                    faults.append(f"{path.relative_to(ROOT)}: there is no test {name}")
        lines.append(line)
    return "\n".join(lines) + "\n"


def anchor(heading):
    """The name that a page's heading has in links."""
    return re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")


def dead_links():
    """Links between documents that lead to no file, or to no heading of it."""
    for page in sorted(ROOT.rglob("*.md")):
        if {"target", "node_modules", ".git"} & set(page.relative_to(ROOT).parts):
            continue
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            file, _, place = link.partition("#")
            to = pathlib.Path(os.path.normpath(page.parent / file)) if file else page
            if link.startswith(("http:", "https:", "mailto:")):
                continue
            headings = re.findall(r"^#+ (.*)", to.read_text(), re.M) if to.suffix == ".md" and to.is_file() else []
            if not to.exists() or (place and to.suffix == ".md" and place not in map(anchor, headings)):
                yield f"{page.relative_to(ROOT)}: the link {link} leads nowhere"


def main():
    by_row, words = read_tests()
    faults = []
    write = "--check" not in sys.argv
    for name, columns in (("docs/features.md", 3), ("docs/threats.md", 4)):
        path = ROOT / name
        text = written(path, columns, write, by_row, words, faults)
        if write:
            path.write_text(text)
    rows = set(re.findall(r"^\| ([A-Z]+[0-9]+) \|", (ROOT / "docs/features.md").read_text() + (ROOT / "docs/threats.md").read_text(), re.M))
    faults += [f"no row {row}, which {min(by_row[row])} is named after" for row in sorted(set(by_row) - rows)]
    faults += dead_links()
    print("\n".join(faults))
    sys.exit(bool(faults))


main()
