#!/usr/bin/env python3
"""Fails when modules of a crate use each other in a circle, or use one of a higher floor.

Reads the paths that begin with `crate`, `super` or `self` in every crate's `src`, without tests, and follows re-exports.
Two rules:

- Modules beside each other, in the crate's root or in one folder, make no circle. The root with its own items is one of
  its modules; what it re-exports is not its own.
- Where the crate's documentation has a table of floors (`gateway/src/lib.rs`), no module uses one of a higher floor.

A module may use its parent and the other way round, which is how Rust's modules are made. `check.py --arrows` also
prints which module uses which; `check.py --selftest` tries the rules on small crates.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

TOKENS = re.compile(r'r(#*)".*?"\1|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'|//[^\n]*|/\*.*?\*/', re.S)
TEST_MODULE = re.compile(r"#\[cfg\((?:test\b|all\(test\b)[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+\w+\s*\{")
EXPORTS = re.compile(r"\bpub(?:\([^)]*\))?\s+use\s+[^;]*;")
EXPORT = re.compile(r"\bpub(?:\([^)]*\))?\s+use\s+")


def packages():
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*Cargo.toml"], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout.split()
    return sorted(str(Path(file).parent) for file in files if (ROOT / file).is_file() and (ROOT / file).parent.joinpath("src").is_dir())


def closing(text, opening):
    """The place behind the brace that closes the one at `opening`."""
    depth = 0
    for place in range(opening, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if depth == 0:
            return place + 1
    return len(text)


def code(text):
    """Without comments, texts and inline modules of tests."""
    text = TOKENS.sub(lambda match: '""' if '"' in match.group(0)[:3] else " ", text).replace("r#", "")
    while match := TEST_MODULE.search(text):
        text = text[:match.start()] + text[closing(text, match.end() - 1):]
    return text


def parts(group):
    """What stands between the commas of a group."""
    depth, begin, found = 0, 0, []
    for place, char in enumerate(group):
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            found.append(group[begin:place])
            begin = place + 1
    return [part for part in [*found, group[begin:]] if part.strip()]


def paths(text, prefix=()):
    """The paths of a use tree or of an expression at the beginning of `text`, each with the name that it gets."""
    match = re.match(r"\s*(\w+|\*)\s*", text)
    if not match:
        return []
    prefix, rest = (*prefix, match.group(1)), text[match.end():]
    if not rest.startswith("::"):
        name = re.match(r"as\s+(\w+)", rest)
        return [(prefix, name.group(1) if name else prefix[-1])]
    rest = rest[2:].lstrip()
    if not rest.startswith("{"):
        return paths(rest, prefix) or [(prefix, prefix[-1])]
    return [path for part in parts(rest[1:closing(rest, 0) - 1]) for path in paths(part, prefix)]


class Crate:
    def __init__(self, package):
        source = package / "src"
        self.name, self.uses, self.exports, self.texts = package, {}, {}, {}
        for file in sorted(source.rglob("*.rs")):
            place = file.relative_to(source).with_suffix("").parts
            if "tests" in place[:-1] or place[-1] == "tests" or (place == ("main",) and (source / "lib.rs").exists()):
                continue
            self.texts[() if place in (("lib",), ("main",)) else place] = code(file.read_text())
        self.floors = floors((source / "lib.rs").read_text()) if (source / "lib.rs").exists() else {}
        for module, text in self.texts.items():
            self.exports[module] = {
                name: path for match in EXPORT.finditer(text) for path, name in paths(text[match.end():])
            }
        for module, text in self.texts.items():
            found = set()
            text = EXPORTS.sub("", text)
            below = "|".join(sorted({other[len(module)] for other in self.texts if other[:len(module)] == module != other}))
            for match in re.finditer(rf"(?<![\w:])(?:crate|super|self{'|' + below if below else ''})\s*::", text):
                for path, _ in paths(match.string[match.start():]):
                    found.add(self.resolve(module, path))
            self.uses[module] = found - {None, module}

    def resolve(self, module, path, seen=()):
        """The module in which the item of a path is; none for paths that leave the crate."""
        at, rest = module, list(path)
        if rest[0] == "crate":
            at, rest = (), rest[1:]
        elif rest[0] == "self":
            rest = rest[1:]
        while rest and rest[0] == "super":
            if not at:
                return None
            at, rest = at[:-1], rest[1:]
        while rest:
            below = (*at, rest[0])
            if any(other[:len(below)] == below for other in self.texts):
                at, rest = below, rest[1:]
                continue
            exported = self.exports.get(at, {}).get(rest[0])
            if exported and (at, rest[0]) not in seen:
                if exported[0] not in ("crate", "self", "super") and (*at, exported[0]) not in self.texts:
                    return None
                inside = exported if exported[0] in ("crate", "self", "super") else ("self", *exported)
                return self.resolve(at, (*inside, *rest[1:]), (*seen, (at, rest[0])))
            break
        return at

    def beside(self, folder):
        """Module of `folder`: those beside it that it, or what is below it, uses."""
        depth = len(folder)
        name = lambda module: module[depth] if len(module) > depth else None if depth else "root"
        uses = {}
        for module, targets in self.uses.items():
            if module[:depth] == folder and name(module):
                mine = uses.setdefault(name(module), set())
                mine |= {name(to) for to in targets if to[:depth] == folder} - {name(module)}
        return {name: {to for to in targets if to in uses} for name, targets in uses.items()}

    def faults(self):
        for folder in sorted({module[:-1] for module in self.texts if module}):
            for circle in circles(self.beside(folder)):
                yield f"{'::'.join(('crate', *folder))}: a circle of {' '.join(sorted(circle))}"
        for module, targets in sorted(self.beside(()).items()):
            for to in sorted(targets):
                if self.floors.get(module, 0) > self.floors.get(to, 99):
                    yield f"crate: {module} uses {to}, which is on a higher floor"
        for module in sorted(set(self.beside(())) - {"root", *self.floors}) if self.floors else []:
            yield f"crate: {module} is on no floor of the table"


def floors(text):
    """Module: the number of its floor from above, of a documentation whose table has a bold line for each floor."""
    found, floor = {}, 0
    for line in text.splitlines():
        floor += line.startswith("//! | **")
        if floor and line.startswith("//! | ["):
            found.update(dict.fromkeys(re.findall(r"\[`(\w+)`\]", line.split("|")[1]), floor))
    return found


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
    found = {frozenset(other for other in reached[name] if name in reached[other]) for name in uses if name in reached[name]}
    return sorted(found, key=sorted)


def selftest():
    """Each small crate breaks exactly one rule, or none."""
    good, circle = [], ["crate: a circle of a b"]
    cases = [
        (good, {"lib": "mod a; mod b;", "a": "use crate::b::X;", "b": "use std::x;"}),
        (good, {"lib": "mod a; mod b; pub use a::X;", "a": "", "b": "use crate::X;"}),
        (good, {"lib": "mod a; mod b;", "a": "use crate::b;", "b": '#[cfg(test)] mod tests { use crate::a; } fn f() { g("crate::a"); } // crate::a'}),
        (good, {"lib": "mod a;", "a": "mod c; use self::c::X;", "a/c": "use super::Y;"}),
        (circle, {"lib": "mod a; mod b;", "a": "use crate::b::X;", "b": "use crate::{a::Y, a};"}),
        (circle, {"lib": "mod a; mod b;", "a": "use super::b::X;", "b": "fn f() { super::a::f() }"}),
        (circle, {"lib": "mod a; mod b; pub use a::Y;", "a": "use crate::b::X;", "b": "use crate::Y;"}),
        (circle, {"lib": "mod a; mod b;", "a": "use crate::r#b::X;", "b": 'fn f() { g("http://x"); crate::a::f() }'}),
        (circle, {"lib": "mod a; mod b;", "a": "use crate::b::X;", "b": "#[cfg(test)] mod early { fn f() {} } use crate::a::Y;"}),
        (circle, {"lib": "mod a; mod b;", "a": "", "a/c": "use super::super::b::X;", "b": "use crate::a::c::Y;"}),
        (["crate::f: a circle of a b"], {"lib": "mod f;", "f": "mod a; mod b;", "f/a": "use super::b::X;", "f/b": "use super::a::Y;"}),
        (["crate: a circle of a root"], {"lib": "mod a; use a::Y; pub struct X;", "a": "use crate::X;"}),
        (["crate: a circle of a root"], {"lib": "mod a; fn f() { a::Y }; pub struct X;", "a": "use super::X;"}),
        (good, {"lib": "mod a; pub struct X;", "a": "use crate::X;"}),
        (["crate: b uses a, which is on a higher floor"],
         {"lib": "//! | **above** | |\n//! | [`a`] | x |\n//! | **below** | |\n//! | [`b`] | x |\nmod a; mod b;", "a": "", "b": "use crate::a::X;"}),
        (["crate: a is on no floor of the table"], {"lib": "//! | **above** | |\n//! | [`b`] | x |\nmod a; mod b;", "a": "", "b": ""}),
    ]
    for expected, files in cases:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                file = Path(folder, "src", name + ".rs")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            found = list(Crate(Path(folder)).faults())
        assert found == expected, (files, expected, found)


def main():
    selftest()
    if "--selftest" in sys.argv:
        return False
    broken = []
    for package in packages():
        crate = Crate(ROOT / package)
        uses, found = crate.beside(()), list(crate.faults())
        broken += [f"{package}: {fault}" for fault in found]
        if "--arrows" in sys.argv:
            for module in sorted(uses):
                print(f"{package}: {module} -> {' '.join(sorted(uses[module]))}")
        print(f"{package}: {len(crate.texts)} modules, {sum(map(len, uses.values()))} arrows in the root, {len(found)} faults")
    for fault in broken:
        print(fault)
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
