#!/usr/bin/env python3
"""Fails when top-level modules of a crate use each other in a circle.

Reads the `crate::` paths in every crate's `src`, without tests. KNOWN lists the circles that are still there. The list only
shrinks: a module that has left a circle must be taken from it, and a new or a larger circle fails. `check.py --arrows` also
prints which module uses which.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Package folder: its circles, each a set of top-level modules.
KNOWN = {
}


def packages():
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*Cargo.toml"], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout.split()
    return sorted(str(Path(file).parent) for file in files if (ROOT / file).is_file() and (ROOT / file).parent.joinpath("src").is_dir())


def without_tests(text):
    """Comments and inline test modules removed; a module of tests is the last item of its file."""
    text = re.sub(r"//.*", "", text)
    return re.split(r"\n\s*#\[cfg\(test\)\]\s*\n\s*(?:pub(?:\([^)]*\))? )?mod \w+ \{", text)[0]


def first_names(group):
    """First path segment of each part of a group; `group` begins after its opening brace."""
    depth, part, parts = 0, "", []
    for char in group:
        depth += (char == "{") - (char == "}")
        if depth == 0 and char == ",":
            parts.append(part)
            part = ""
        elif depth < 0:
            break
        else:
            part += char
    return [match.group(0) for match in (re.match(r"\w+", p.strip()) for p in [*parts, part]) if match]


def arrows(package):
    """Top-level module: the top-level modules of the same crate that it uses."""
    source = ROOT / package / "src"
    files = [file for file in source.rglob("*.rs") if "tests" not in file.relative_to(source).with_suffix("").parts]
    names = {file.relative_to(source).with_suffix("").parts[0] for file in files} - {"lib", "main"}
    uses = {name: set() for name in names}
    for file in files:
        module = file.relative_to(source).with_suffix("").parts[0]
        if module not in uses:
            continue
        text = without_tests(file.read_text())
        found = set(re.findall(r"\bcrate::(\w+)", text))
        for match in re.finditer(r"\bcrate::\{", text):
            found.update(first_names(text[match.end():]))
        uses[module] |= (found & names) - {module}
    return uses


def circles(uses):
    """Sets of modules that reach each other."""
    def reach(start):
        seen, todo = set(), [start]
        while todo:
            for name in uses[todo.pop()] - seen:
                seen.add(name)
                todo.append(name)
        return seen

    reached = {name: reach(name) for name in uses}
    return {frozenset(other for other in reached[name] if name in reached[other]) for name in uses if name in reached[name]}


def faults(package, found, known):
    for circle in sorted(found - known, key=sorted):
        inside = [old for old in known if circle < old]
        if inside:
            yield f"{package}: the circle in KNOWN has become smaller; write there: {sorted(circle)}"
        else:
            yield f"{package}: modules use each other in a circle: {', '.join(sorted(circle))}"
    for circle in sorted(known - found, key=sorted):
        if not any(new < circle for new in found):
            yield f"{package}: this circle is no longer there, take it from KNOWN: {', '.join(sorted(circle))}"


def main():
    broken = []
    all_packages = packages()
    for package in all_packages:
        uses = arrows(package)
        found = circles(uses)
        known = {frozenset(circle.split()) for circle in KNOWN.get(package, [])}
        broken += faults(package, found, known)
        if "--arrows" in sys.argv:
            for module in sorted(uses):
                print(f"{package}: {module} -> {' '.join(sorted(uses[module]))}")
        print(f"{package}: {len(uses)} modules, {sum(map(len, uses.values()))} arrows, {len(found)} circles"
              f" of {sum(map(len, found))} modules")
    broken += [f"{package}: in KNOWN, but no package" for package in KNOWN if package not in all_packages]
    for fault in broken:
        print(fault)
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
