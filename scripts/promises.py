#!/usr/bin/env python3
"""Generates docs/promises.md: which command checks which promise of SPECIFICATION.md.

    scripts/promises.py            write docs/promises.md
    scripts/promises.py --check    exit with 1 if it is out of date or an annotation is wrong

A test is annotated in comments above its attributes and documentation; a line that is indented by
three spaces continues the rule:

    // Promise: P5 - Durable checkpoint records survive `kill -9` at any moment.
    #[test]
    fn a_kill_at_any_moment_loses_no_durable_checkpoint() {

A target of the Makefile is annotated above its rule; brackets contain the arguments of make:

    # Promise: P22 [DURATION=30] - A node executes 1,000 updates/s.
    bench: build

Errors: an annotation without a test function or target, an unknown promise, and a promise without
a check.
"""

import os
import re
import sys
from collections import namedtuple
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SPECIFICATION = ROOT / "SPECIFICATION.md"
MAKEFILE = ROOT / "Makefile"
PAGE = ROOT / "docs" / "promises.md"
# The folders of the workspace's crates. Tests of other workspaces have no command of their own.
CRATES = ("ground", "node", "relay", "tools", "lab")

PROMISE = re.compile(r"^- \*\*(P\d+) ([^*]+)\.\*\*", re.MULTILINE)
ANNOTATION = re.compile(r"^(P\d+)(?: \[([^\]]+)\])? - (\S.*)$")
TEST = re.compile(r"^#\[(?:tokio::)?test\b")
FUNCTION = re.compile(r"^(?:pub(?:\(\w+\))? )?(?:async )?fn (\w+)")
MODULE = re.compile(r"^(?:pub(?:\(\w+\))? )?mod (\w+) \{$")
MODULE_FILE = re.compile(r'#\[path = "([^"/]+)"\]\s*mod (\w+);')
TARGET = re.compile(r"^([a-z-]+):")

Check = namedtuple("Check", "promise rule command file")
Test = namedtuple("Test", "program path ignored annotations file")


class Program:
    """Where the tests of a source file run: the option of `cargo test`, and the module path."""

    def __init__(self, file, renamed):
        manifest = next(folder for folder in file.parents if (folder / "Cargo.toml").is_file())
        parts = list(file.relative_to(manifest).with_suffix("").parts)
        text = (manifest / "Cargo.toml").read_text()
        root, modules = parts[0], parts[1:]
        self.main = False
        if root == "src":
            package = re.search(r'^name = "([^"]+)"', text, re.MULTILINE)[1]
            library = (manifest / "src" / "lib.rs").is_file()
            self.option = "--lib" if library else f"--bin {package}"
        else:
            name = modules.pop(0)
            path = re.escape(f'path = "tests/{name}/main.rs"')
            other = re.search(rf'^name = "([^"]+)"\n{path}', text, re.MULTILINE)
            name = other[1] if other else name
            self.option = f"--test {name}"
            own_main = rf'^name = "{name}"\n(?:[^\[].*\n)*?harness = false'
            self.main = re.search(own_main, text, re.MULTILINE) is not None
        if modules and modules[-1] in ("lib", "main", "mod"):
            modules.pop()
        if file in renamed:
            parent, module = renamed[file]
            modules = Program(parent, {}).modules + [module]
        self.modules = modules


def sources():
    """All Rust files of the repository."""
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(name for name in folders if name != "target" and name[0] != ".")
        for name in sorted(files):
            if name.endswith(".rs"):
                yield Path(folder) / name


def annotations(lines, mark, errors, place):
    """The annotations that `lines` begin with, as [promise, arguments, rule], and their lines."""
    found = []
    count = 0
    for count, line in enumerate(lines):
        line = line.strip()
        if line.startswith(f"{mark} Promise:"):
            match = ANNOTATION.match(line.removeprefix(f"{mark} Promise:").strip())
            if match is None:
                errors.append(f"{place}: not of the form `{mark} Promise: P1 - rule`: {line}")
            else:
                found.append(list(match.groups()))
        elif line.startswith(f"{mark}   ") and found:
            found[-1][2] += " " + line.removeprefix(mark).strip()
        else:
            return found, count
    return found, count + 1


def tests_of(file, text, renamed, errors):
    """All tests of a file, with their annotations."""
    lines = text.splitlines()
    program = None
    modules = []
    pending, pending_at, is_test, ignored = [], 0, False, False
    index = 0
    while index < len(lines):
        raw = lines[index]
        line = raw.strip()
        indent = len(raw) - len(raw.lstrip())
        place = f"{file.relative_to(ROOT)}:{index + 1}"
        if line.startswith("// Promise:"):
            pending, count = annotations(lines[index:], "//", errors, place)
            pending_at = place
            index += max(count, 1)
            continue
        index += 1
        function = FUNCTION.match(line)
        if MODULE.match(line):
            modules.append((indent, MODULE.match(line)[1]))
        elif modules and line == "}" and indent == modules[-1][0]:
            modules.pop()
        if TEST.match(line):
            is_test = True
        elif line.startswith("#[ignore"):
            ignored = True
        elif function:
            name = function[1]
            is_ours = file.relative_to(ROOT).parts[0] in CRATES
            if program is None and is_ours and (is_test or pending):
                program = Program(file, renamed)
            # A test program with a `main` of its own lists its tests by name.
            if program is not None and (is_test or (program.main and f'"{name}"' in text)):
                path = "::".join(program.modules + [module for _, module in modules] + [name])
                yield Test(program, path, ignored, pending, file)
            elif pending:
                errors.append(f"{pending_at}: not above a test function of this workspace")
            pending, is_test, ignored = [], False, False
        elif pending and not line.startswith(("#", "//", ")")) and not is_test:
            errors.append(f"{pending_at}: not above a test function of this workspace")
            pending = []
    if pending:
        errors.append(f"{pending_at}: not above a test function of this workspace")


def checks_of_tests(errors):
    texts = {file: file.read_text() for file in sources()}
    renamed = {}
    for file, text in texts.items():
        for name, module in MODULE_FILE.findall(text):
            renamed[file.parent / name] = (file, module)
    tests = []
    for file, text in texts.items():
        if "#[test]" in text or "::test" in text or "// Promise:" in text:
            tests += tests_of(file, text, renamed, errors)
    paths = {}
    for test in tests:
        paths.setdefault(test.program.option, []).append(test.path)
    for test in tests:
        if not test.annotations:
            continue
        # Without `--exact` a path is a filter, which other paths may contain.
        others = [path for path in paths[test.program.option] if path != test.path]
        options = ["--exact"] if any(test.path in path for path in others) else []
        options += ["--ignored"] if test.ignored else []
        end = f" -- {' '.join(options)}" if options else ""
        command = f'make test ARGS="{test.program.option} {test.path}{end}"'
        for promise, arguments, rule in test.annotations:
            if arguments:
                place = test.file.relative_to(ROOT)
                errors.append(f"{place}: a test has no arguments: {arguments}")
            yield Check(promise, rule, command, test.file)


def checks_of_targets(errors):
    lines = MAKEFILE.read_text().splitlines()
    index = 0
    while index < len(lines):
        place = f"Makefile:{index + 1}"
        if not lines[index].startswith("# Promise:"):
            index += 1
            continue
        found, count = annotations(lines[index:], "#", errors, place)
        index += max(count, 1)
        while index < len(lines) and lines[index].startswith("#"):
            index += 1
        target = TARGET.match(lines[index]) if index < len(lines) else None
        if target is None:
            errors.append(f"{place}: not above a target")
            continue
        for promise, arguments, rule in found:
            command = f"make {target[1]}" + (f" {arguments}" if arguments else "")
            yield Check(promise, rule, command, MAKEFILE)


def page(promises, checks):
    rows = [
        "# Promises and their checks",
        "",
        "Generated by `scripts/promises.py` from the annotations of tests and of targets in the",
        "Makefile; do not edit. [SPECIFICATION.md](../SPECIFICATION.md) states the promises.",
        "",
        "A command runs the named test. Tests of other crates with the same path run, too, because",
        "`make test` covers the whole workspace.",
    ]
    for promise, title in promises.items():
        rows += ["", f"## {promise} {title}", "", "| rule | check | file |", "|---|---|---|"]
        for check in checks:
            if check.promise == promise:
                path = check.file.relative_to(ROOT)
                rule = check.rule.replace("|", "\\|")
                rows.append(f"| {rule} | `{check.command}` | [{path.name}](../{path}) |")
    return "\n".join(rows) + "\n"


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        print(__doc__)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    errors = []
    promises = dict(PROMISE.findall(SPECIFICATION.read_text()))
    checks = [*checks_of_tests(errors), *checks_of_targets(errors)]
    for check in checks:
        if check.promise not in promises:
            place = check.file.relative_to(ROOT)
            errors.append(f"{place}: SPECIFICATION.md has no {check.promise}: {check.rule}")
    checked = {check.promise for check in checks}
    unchecked = [promise for promise in promises if promise not in checked]
    errors += [f"SPECIFICATION.md: {promise} has no check" for promise in unchecked]
    text = page(promises, checks)
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(text)
    elif not PAGE.is_file() or PAGE.read_text() != text:
        errors.append("docs/promises.md is out of date: run scripts/promises.py")
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


sys.exit(main())
