#!/usr/bin/env python3
"""Checks sizes and links of the documents; exit status 1 if one is wrong (`make lint` runs it).

    scripts/documents.py

Sizes: bytes of README.md, ARCHITECTURE.md and each page of docs/internals, which has one diagram
unless it is a list; promises in SPECIFICATION.md; words of each entry of CHANGELOG.md. Records of
docs/decisions are numbered without gaps and listed. Links: relative ones of all Markdown lead to a
file, and to a heading in it. Metrics that a document names are listed in the reference. Needs no
package.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BYTES = {"README.md": 5_000, "ARCHITECTURE.md": 10_000}
INTERNALS_BYTES = 8_000
PROMISES = 25
ENTRY_WORDS = 25
# Lists, without a diagram.
LISTS = ("code-map.md", "glossary.md")
# A diagram is a block of text that comes before the first heading of a section.
DIAGRAM = re.compile(r"^```text\n.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[(?:[^\[\]]|`[^`]*`)*\]\(([^()\s]+)\)")


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


def documents():
    """All Markdown files."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard",
                             "*.md"], cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]


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


def main():
    if len(sys.argv) > 1:
        print(__doc__)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    files = documents()
    errors = [*sizes(), *decisions(), *metrics(files), *links(files)]
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


sys.exit(main())
