#!/usr/bin/env python3
"""Counts functions and assertions outside tests, for each crate.

    scripts/assertions.py            a table: crate, functions, assertions, assertions per 100
    scripts/assertions.py --check    the same, and exit status 1 below the floor (`make lint`)
    scripts/assertions.py PATH...    every assertion below these paths, as FILE:LINE: text

A function is a `fn` with a body. Assertions are `assert!` and `debug_assert!` with their forms
`_eq` and `_ne`, also in constants; `ensure!` returns an error about its input and is none. Not
counted are the folders and crates in TESTS, and items and modules with `#[cfg(test)]`. Needs no
package.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Assertions per 100 functions of the repository.
FLOOR = 6.0

# The folders of the workspace's crates, and in them code that only tests and measurements run.
CRATES = ("ground", "node", "relay", "tools", "lab")
TESTS = ("tests", "benches", "examples", "byzantine", "ground/testing")
# Comments, and literals of strings and characters. A lifetime is no literal.
TEXT = re.compile(
    r"//[^\n]*|/\*.*?\*/|\bb?r(#*)\".*?\"\1|\bb?\"(?:[^\"\\]|\\.)*\"|\"(?:[^\"\\]|\\.)*\""
    r"|'(?:[^'\\\n]|\\[^\n][^'\n]*)'",
    re.DOTALL,
)
ATTRIBUTES = r"(?:\s*#\[[^\]]*\])*\s*"
TEST = re.compile(r"#\[cfg\(test\)\]" + ATTRIBUTES)
MODULE = re.compile(r"(?:pub(?:\([^)]*\))? )?mod (\w+);")
MODULE_PATH = re.compile(r'#\[path = "([^"]+)"\]')
# Arguments and results contain `;` in types of arrays only.
FUNCTION = re.compile(r"\bfn \w+(?:[^;{\[]|\[[^\]]*\])*\{")
ASSERTION = re.compile(r"\b(?:debug_)?assert(?:_eq|_ne)?!")


def blank(text):
    """Spaces in place of a text, with its line ends."""
    return re.sub(r"[^\n]", " ", text)


def item_end(code, start):
    """Where the item at `start` ends: after its `;`, or after its block."""
    depth = 0
    for found in re.compile(r"[{}();\[\]]").finditer(code, start):
        depth += {"{": 1, "(": 1, "[": 1, ";": 0}.get(found[0], -1)
        if depth <= 0 and found[0] in ";}":
            return found.end()
    return len(code)


def outside_tests(path):
    """The code of a file without texts and tests, and the paths of its modules of tests."""
    text = path.read_text(encoding="utf-8")
    code = TEXT.sub(lambda found: blank(found[0]), text)
    folder = path.parent if path.stem in ("lib", "main", "mod") else path.with_suffix("")
    modules = []
    while found := TEST.search(code):
        module = MODULE.match(code, found.end())
        renamed = MODULE_PATH.search(text, found.start(), found.end())
        if renamed:
            modules.append(path.parent / renamed[1])
        elif module:
            modules += [folder / f"{module[1]}.rs", folder / module[1]]
        end = item_end(code, found.end())
        code = code[:found.start()] + blank(code[found.start():end]) + code[end:]
    return code, modules


def sources():
    """The files of the crates, without those of tests: (name, code outside tests)."""
    out = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                         cwd=ROOT, capture_output=True, check=True).stdout
    files, tests = {}, set()
    for name in sorted(set(out.decode().split("\0"))):
        parts = name.split("/")
        is_test = name.startswith(TESTS) or len(parts) < 4 or parts[2] in TESTS
        if name.endswith(".rs") and parts[0] in CRATES and not is_test and (ROOT / name).is_file():
            files[ROOT / name], modules = outside_tests(ROOT / name)
            tests.update(modules)
    for path, code in files.items():
        if not tests.intersection([path, *path.parents]):
            yield str(path.relative_to(ROOT)), code


def rate(functions, assertions):
    return assertions * 100 / max(functions, 1)


def main(arguments):
    paths = [argument.rstrip("/") for argument in arguments if not argument.startswith("-")]
    counts = {}
    for name, code in sources():
        assertions = list(ASSERTION.finditer(code))
        crate = counts.setdefault("/".join(name.split("/")[:2]), [0, 0])
        crate[0] += len(FUNCTION.findall(code))
        crate[1] += len(assertions)
        if any(name == path or name.startswith(path + "/") for path in paths):
            lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
            for number in (code.count("\n", 0, found.start()) for found in assertions):
                print(f"{name}:{number + 1}: {lines[number].strip()}")
    if paths:
        return 0
    counts["all"] = [sum(column) for column in zip(*counts.values())]
    print(f"{'crate':20} {'functions':>10} {'assertions':>11} {'per 100':>8}")
    for crate, (functions, assertions) in counts.items():
        print(f"{crate:20} {functions:10,} {assertions:11,} {rate(functions, assertions):8.1f}")
    below = rate(*counts["all"]) < FLOOR
    if below:
        print(f"assertions: the repository is below the floor of {FLOOR} per 100 functions")
    return int("--check" in arguments and below)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
