#!/usr/bin/env python3
"""Checks sizes and links of the documents; exit status 1 if one is wrong (`make lint` runs it).

    scripts/documents.py

Sizes: bytes of README.md, ARCHITECTURE.md and each page of docs/internals, which has one diagram
unless it is a list; promises in SPECIFICATION.md; words of each entry of CHANGELOG.md. Records of
docs/decisions are numbered without gaps and listed. Links: relative ones of all Markdown lead to a
file, and to a heading in it. Metrics that a document names are listed in the reference. Paths in
backticks exist, if they begin with a folder of the repository or end in the suffix of a source file
(the rest of a path is enough); names in capitals stand for any. Test programs that a document, the
Makefile or a script names (`-p CRATE --test NAME PART`) exist, and a test whose name has this part.
Versions of formats and rules that a document states are those of the program. Lines of Rust have
100 columns at most, except rows of tables and lines that only a string makes long, whose number
must not grow. Needs no package.
"""

import itertools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BYTES = {"README.md": 5_000, "ARCHITECTURE.md": 10_000}
INTERNALS_BYTES = 8_000
PROMISES = 25
ENTRY_WORDS = 25
# Lists, without a diagram.
LISTS = ("code-map.md", "glossary.md", "glossary-relay.md", "recipes.md", "recipes-relay.md")
# Columns of a line of Rust. Lines that rustfmt cannot break, because of a string, are counted.
COLUMNS = 100
LONG_STRINGS = 450
# Versions that a document names: the document, the words before the version, and its constant.
VERSIONS = (
    ("CHANGELOG.md", "checkpoint store has another format than", "node/state/src/store.rs",
     "FORMAT"),
    ("CHANGELOG.md", "rules than version", "node/execution/src/lib.rs", "RULES_VERSION"),
    ("CHANGELOG.md", "Messages between members have version", "node/consensus/src/subnet/wire.rs",
     "VERSION"),
    ("CHANGELOG.md", "manifests version", "node/state/src/manifest/mod.rs", "VERSION"),
    ("docs/interface.md", "(`thimble-rules-", "node/execution/src/lib.rs", "RULES_VERSION"),
)
# A diagram is a block of text that comes before the first heading of a section.
DIAGRAM = re.compile(r"^```text\n.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[(?:[^\[\]]|`[^`]*`)*\]\(([^()\s]+)\)")
# Suffixes of files that are sources of this repository; other files may be an operator's.
SOURCES = (".rs", ".c", ".h", ".py", ".mo")
PATH = re.compile(r"[\w.*{},-]+(?:/[\w.*{},-]+)*/?")
TEST = re.compile(r"(?:-p\s+([\w-]+)\s+)?((?:--test\s+[a-z]\w*\s*)+)")
# A crate, and a part of the name of a test.
FILTER = re.compile(r"-p\s+([\w-]+)\s+(?:--lib|--test\s+\w+)\s+([a-z][\w:]*)")


def text(name):
    return (ROOT / name).read_text()


def sizes():
    """Documents that are larger than they may be."""
    pages = sorted((ROOT / "docs/internals").glob("*.md"))
    limits = BYTES | {str(page.relative_to(ROOT)): INTERNALS_BYTES for page in pages}
    for name, most in limits.items():
        size = len(text(name).encode())
        if size > most:
            yield f"{name}: {size:,} bytes, the most is {most:,}"
    for page in pages:
        opening = page.read_text().split("\n## ")[0]
        count = len(DIAGRAM.findall(opening))
        if count != (0 if page.name in LISTS else 1):
            yield f"docs/internals/{page.name}: {count} diagrams before the first section"
    promises = len(re.findall(r"^- \*\*P\d+ ", text("SPECIFICATION.md"), re.MULTILINE))
    if promises > PROMISES:
        yield f"SPECIFICATION.md: {promises} promises, the most is {PROMISES}"
    for entry in re.findall(r"^- (.*(?:\n  .*)*)", text("CHANGELOG.md"), re.MULTILINE):
        words = entry.split()
        if len(words) > ENTRY_WORDS:
            yield f"CHANGELOG.md: {len(words)} words, the most is {ENTRY_WORDS}: {' '.join(words)}"


def decisions():
    """Decision records with a gap before them, or that are not listed."""
    listed = text("docs/decisions/README.md")
    records = sorted(path.name for path in (ROOT / "docs/decisions").glob("[0-9]*.md"))
    for number, name in enumerate(records, 1):
        if not name.startswith(f"{number:04}-"):
            yield f"docs/decisions/{name}: record {number:04} is missing"
        if f"({name})" not in listed:
            yield f"docs/decisions/README.md: {name} is not listed"


def anchors(page):
    """Anchors of a page's headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", re.sub(r"(?ms)^```.*?^```$", "", page), re.MULTILINE):
        plain = re.sub(r"\]\([^)]*\)", "", heading).lower()
        base = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = 0
        while (anchor := f"{base}-{number}" if number else base) in found:
            number += 1
        found.add(anchor)
    return found


def tracked(*patterns):
    """Names of files in the repository."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard",
                             *patterns], cwd=ROOT, capture_output=True, check=True).stdout
    return [name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]


def documents():
    """All Markdown files."""
    return [ROOT / name for name in tracked("*.md")]


def metrics(files):
    """Metrics that no program has. The changelog names former ones."""
    listed = set(re.findall(r"`(thimble_\w+)`", text("docs/reference/metrics.md")))
    for file in files:
        if file.name == "CHANGELOG.md":
            continue
        for name in re.findall(r"`(thimble_\w*[a-z])[`{]", file.read_text()):
            if name not in listed:
                yield f"{file.relative_to(ROOT)}: {name} is not in docs/reference/metrics.md"


def links(files):
    """Links that lead nowhere."""
    known = {file.resolve(): anchors(file.read_text()) for file in files}
    for file in files:
        page = re.sub(r"(?ms)^```.*?^```$", "", file.read_text())
        # The target of a link may be on the next line.
        for target in LINK.findall(re.sub(r"\s*\n\s*", " ", page)):
            path, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            place = (file.parent / path).resolve() if path else file.resolve()
            if not place.exists():
                yield f"{file.relative_to(ROOT)}: {target} does not exist"
            elif anchor and anchor not in known.get(place, {anchor}):
                yield f"{file.relative_to(ROOT)}: {target} is no heading of that page"


def alternatives(path):
    """The paths that `a/{b,c}.rs` stands for."""
    parts = [part.split(",") for part in re.split(r"[{}]", path)]
    return ["".join(choice) for choice in itertools.product(*parts)]


def paths(files):
    """Paths in backticks that lead nowhere. The changelog names former ones."""
    known = tracked()
    folders = {name.split("/")[0] for name in known if "/" in name}
    # Each file and each of its folders, with what comes before it.
    whole = "\n".join({"/" + "/".join(name.split("/")[:count]) for name in known
                       for count in range(1, name.count("/") + 2)}) + "\n"
    for file in files:
        if file.name == "CHANGELOG.md":
            continue
        page = re.sub(r"(?ms)^```.*?^```$", "", file.read_text())
        spans = re.findall(r"`([^`]+)`", page)
        for word in itertools.chain.from_iterable(span.split() for span in spans):
            inside = "/" in word and word.split("/")[0] in folders
            if not PATH.fullmatch(word) or not inside and not word.endswith(SOURCES):
                continue
            for path in alternatives(word.rstrip("/")):
                some = re.escape(path).replace(r"\*", r"[^/\n]*")
                some = re.sub(r"\b[A-Z]{3,}\b", lambda _: r"[^/\n]+", some)
                if not re.search(f"/{some}$", whole, re.MULTILINE):
                    yield f"{file.relative_to(ROOT)}: `{path}` does not exist"


def crates():
    """Folder of each crate, and names of its test programs."""
    found = {}
    for name in tracked("*Cargo.toml"):
        manifest = tomllib.loads(text(name))
        if "package" not in manifest:
            continue
        crate = (ROOT / name).parent
        stated = manifest.get("test", [])
        programs = {test["name"] for test in stated}
        if manifest["package"].get("autotests", True):
            paths_stated = {test.get("path") for test in stated}
            for path in [*crate.glob("tests/*.rs"), *crate.glob("tests/*/main.rs")]:
                if str(path.relative_to(crate)) not in paths_stated:
                    programs.add(path.stem if path.stem != "main" else path.parent.name)
        found[manifest["package"]["name"]] = (crate, programs)
    return found


def tests(files):
    """Test programs and tests that no crate, or not the named one, has."""
    known = crates()
    everywhere = set().union(*(programs for _, programs in known.values()))
    others = [ROOT / name for name in tracked("Makefile", "scripts/*.sh")]
    for file in [*files, *others]:
        page = file.read_text()
        for crate, named in TEST.findall(page):
            programs = known.get(crate, (ROOT, set()))[1] if crate else everywhere
            for name in re.findall(r"--test\s+(\w+)", named):
                if name not in programs:
                    of = f" of {crate}" if crate else ""
                    yield f"{file.relative_to(ROOT)}: --test {name}{of} does not exist"
        for crate, name in FILTER.findall(page):
            part = name.strip(":").split("::")[-1]
            sources = known[crate][0].rglob("*.rs") if crate in known else []
            found = (part in path.stem or re.search(rf"fn \w*{part}", path.read_text())
                     for path in sources)
            if not part.isupper() and not any(found):
                yield f"{file.relative_to(ROOT)}: {crate} has no test `{name}`"


def versions():
    """Versions that a document states and the program does not have."""
    for name, before, source, constant in VERSIONS:
        page = " ".join(text(name).split())
        stated = re.search(re.escape(before) + r" ?(\d+)", page)
        found = re.search(rf"const {constant}: u\d+ = (\d+);", text(source))
        if not stated or not found:
            yield f"{name}: \"{before} N\", or {constant} in {source}, is gone"
        elif stated[1] != found[1]:
            yield f"{name}: \"{before} {stated[1]}\", but {constant} in {source} is {found[1]}"


def columns():
    """Lines of Rust that are too long. Tables in comments have one line for each row; lines of
    `canisters` are in the modules built from them, where panics name them."""
    strings = 0
    for name in tracked("*.rs"):
        if name.startswith("canisters/"):
            continue
        for number, line in enumerate(text(name).split("\n"), 1):
            if len(line) <= COLUMNS or re.match(r"\s*//[/!]? \|", line):
                continue
            if re.match(r"\s*//", line):
                yield f"{name}:{number}: {len(line)} columns, the most is {COLUMNS}"
            else:
                strings += 1
    if strings > LONG_STRINGS:
        yield f"{strings} lines of code over {COLUMNS} columns, the most is {LONG_STRINGS}"


def main():
    if len(sys.argv) > 1:
        print(__doc__)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    files = documents()
    errors = [*sizes(), *decisions(), *metrics(files), *links(files),
              *paths(files), *tests(files), *versions(), *columns()]
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


sys.exit(main())
