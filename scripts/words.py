#!/usr/bin/env python3
"""Counts idioms in the project's prose, and types with names that are no terms of the field.

    scripts/words.py            one line for each pattern: count, rate, limit
    scripts/words.py --check    the same, and exit status 1 above a limit (`make lint` runs it)
    scripts/words.py --files    the files with the most findings
    scripts/words.py PATH...    every finding below these paths, as FILE:LINE: pattern: text

Prose is Markdown without code blocks, comments of Rust, and string literals of Rust of at least
four words. Rates are findings per 10,000 words of prose. Needs no package.
"""

import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TYPES = ROOT / "scripts" / "words-types.txt"
# A literal with fewer words is a name or a format.
LITERAL_WORDS = 4

# Name, expression, limit per 10,000 words.
PATTERNS = [
    ("sentence that begins with What", r"(?:(?<=[.:;!?] )|(?<=^))What\b(?![^.]*\?)", 5),
    ("nobody, somebody, everybody, whoever", r"\b(?:no|some|every)body(?:'s)?\b|\bwhoever\b", 2),
    ("tell, told", r"\b(?:tells?|told|telling)\b", 3),
    ("lie, lies", r"\b(?:lies?|lying|lay)\b", 2),
    ("beside, besides", r"\bbesides?\b", 2),
    ("so many", r"\bso many\b", 0),
    ("in words", r"\bin words\b", 1),
    ("comes to", r"\b(?:comes?|came) to\b", 1),
    ("goes on", r"\b(?:go|goes|went|going) on\b", 1),
    ("out of nothing", r"\bout of nothing\b", 1),
    ("lets go", r"\b(?:lets?|letting) go\b", 1),
]
COMPILED = [(name, re.compile(text, re.IGNORECASE if name[0].islower() and "What" not in name else 0),
             limit) for name, text, limit in PATTERNS]

WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
TYPE = re.compile(r"^\s*(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait|type|union) ([A-Z]\w*)")
# Everyday words that name no concept of the field.
EVERYDAY = set("""
Above Aim Around Ask Away Before Below Beside Blame Card Cellar Company Desk Doing Fate Flavour Fresh
Half Here Hold Inn Kin Look Means Near News Next Odd One Part Place Place Rest Rig Room Rung Said Say
Scene Seat Side Some Sort Spot Still Surroundings Tell Telling Then There Thing Tide Trouble Turn Way
Whole Why Word Words Work
""".split())
# Participles, and adjectives that are used as one.
PARTICIPLE = re.compile(
    r"^(?:[A-Z][a-z]+ed|Bound|Begun|Built|Come|Cut|Done|Drawn|Driven|Fed|Found|Given|Gone|Held|Kept|"
    r"Known|Laid|Lent|Left|Made|Met|Paid|Put|Ran|Read|Seen|Sent|Set|Shown|Shut|Spent|Spoken|Taken|"
    r"Thought|Told|Torn|Won|Worn|Written)$"
)


def tracked(*suffixes):
    out = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                         cwd=ROOT, capture_output=True, check=True).stdout
    for name in sorted(set(out.decode().split("\0"))):
        path = ROOT / name
        if name.endswith(suffixes) and path.is_file():
            yield name, path.read_text(encoding="utf-8", errors="replace")


def markdown(text):
    """Lines of prose of a page: (number, text)."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield number, re.sub(r"`[^`]*`", "x", line.strip().lstrip("#>*-|0123456789. "))


LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')


def rust(text):
    """Comments and literals of a source file: (number, text). Comments of several lines are joined,
    so that a sentence begins where it does."""
    comment = re.compile(r"^\s*//[/!]?\s?(.*)$")
    for number, line in enumerate(text.splitlines(), 1):
        found = comment.match(line)
        if found:
            yield number, re.sub(r"`[^`]*`", "x", found.group(1).strip().lstrip("#-*| "))
            continue
        for literal in LITERAL.finditer(line):
            if len(WORD.findall(literal.group(1))) >= LITERAL_WORDS and "(module" not in line:
                yield number, literal.group(1)


def findings():
    """All prose: words, and (file, line, pattern, text) of each finding."""
    words, found = 0, []
    for name, text in tracked(".md", ".rs"):
        lines = list(markdown(text) if name.endswith(".md") else rust(text))
        previous = "."
        for number, line in lines:
            words += len(WORD.findall(line))
            for pattern, expression, _ in COMPILED:
                for hit in expression.finditer(line):
                    # A line that continues a sentence does not begin one.
                    continues = hit.start() == 0 and previous[-1:] not in ".:;!?|" and previous
                    if "What" in pattern and continues:
                        continue
                    found.append((name, number, pattern, line))
            previous = line
    return words, found


def types():
    """Names of types that are a bare participle or an everyday word: {name: [file:line]}."""
    named = collections.defaultdict(list)
    for name, text in tracked(".rs"):
        for number, line in enumerate(text.splitlines(), 1):
            found = TYPE.match(line)
            if found and (found[1] in EVERYDAY or PARTICIPLE.match(found[1])):
                named[found[1]].append(f"{name}:{number}")
    return named


def exceptions():
    """Names that are allowed: NAME COUNT, and the reason after a #."""
    allowed = {}
    if TYPES.is_file():
        for line in TYPES.read_text().splitlines():
            name, _, rest = line.partition(" ")
            if name and not name.startswith("#"):
                allowed[name] = int(rest.split("#")[0])
    return allowed


def main(arguments):
    words, found = findings()
    paths = [argument for argument in arguments if not argument.startswith("-")]
    if paths:
        below = [str(pathlib.Path(path)).rstrip("/") for path in paths]
        for name, number, pattern, line in found:
            if any(name == path or name.startswith(path + "/") for path in below):
                print(f"{name}:{number}: {pattern}: {line}")
        return 0
    if "--files" in arguments:
        for name, count in collections.Counter(entry[0] for entry in found).most_common(60):
            print(f"{count:6} {name}")
        return 0
    above = False
    counts = collections.Counter(entry[2] for entry in found)
    print(f"{words:,} words of prose; findings per 10,000 words:")
    for pattern, _, limit in COMPILED:
        rate = counts[pattern] * 10_000 / max(words, 1)
        above |= rate > limit
        mark = "  above the limit" if rate > limit else ""
        print(f"  {pattern:38} {counts[pattern]:6} {rate:7.1f}  limit {limit}{mark}")
    allowed, named = exceptions(), types()
    fresh = {name: places for name, places in named.items() if len(places) > allowed.get(name, 0)}
    total = sum(len(places) for places in named.values())
    print(f"  types that are a participle or an everyday word: {total}, allowed {sum(allowed.values())}")
    for name, places in sorted(fresh.items()):
        print(f"    {name}: {len(places)}, {allowed.get(name, 0)} allowed: {' '.join(places)}")
    above |= bool(fresh)
    if "--check" in arguments and above:
        print("words: above a limit; scripts/words.py PATH lists the findings below a path")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
