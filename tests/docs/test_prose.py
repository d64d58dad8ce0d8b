"""Pages have short lines and cells, few numbers in a paragraph, and links that work.

A number is digits in prose. These do not count: code, a link's target, part of a word (int8,
LeNet-5, 4-bit), a year, and a label (Algorithm 1, Table 2, seeds 0, 1, 2, Python 3.11).
"""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")]
PAGES += [ROOT / name / "README.md" for name in ("papers/benchmarks", "compression")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
LINE, CELL, NUMBERS = 100, 60, 5

LABELS = (
    "Algorithms?|Appendix|Definitions?|Figures?|RFC|Tables?|Theorems?|[Ee]quations?|[Ll]ines?"
    "|[Pp]ropositions?|[Ss]ections?|[Ss]eeds?|[Vv]ersions?|Python|Flower|PyTorch|torch"
)
LABEL = r"\d+(?:\.\d+)*+(?![,.]?\d|\s*%)"
NOT_NUMBERS = re.compile(
    r"`[^`]*`"  # code
    r"|!?\[([^]]*)\]\([^)]*\)"  # a link or a picture: its text is kept
    rf"|\b(?:{LABELS})\s+{LABEL}(?:(?:,| to| and| or|, and)\s+{LABEL})*"
    r"|\b(?:19|20)\d\d\b"  # a year
    r"|\b[A-Za-z_][\w.+]*(?:-\w+)*|\d[\w.]*-[A-Za-z]\w*"  # a word with digits in it
)
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:\^\d+)?")
LINK = re.compile(r"!?\[[^]]*\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """A paragraph, an item of a list or a row of a table, and the number of its first line."""

    line: int
    text: str
    row: bool = False


def blocks(lines: list[str]) -> list[Block]:
    """Split a page into blocks; fenced code and comments are left out."""
    found: list[Block] = []
    fenced = fresh = False
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text.startswith("```"):
            fenced, fresh = not fenced, True
        elif fenced:
            continue
        elif not text or text.startswith("<!--"):
            fresh = True
        elif text.startswith("|"):
            found.append(Block(number, text, row=True))
            fresh = True
        elif fresh or text.startswith("#") or re.match(r"([*+-]|\d+[.)]) ", text) or not found:
            found.append(Block(number, re.sub(r"^\d+[.)] ", "", text)))
            fresh = text.startswith("#")
        else:
            found[-1] = found[-1]._replace(text=f"{found[-1].text} {text}")
    return found


def numbers(text: str) -> list[str]:
    """Return the numbers that a reader of the text sees."""
    bare = text
    while (once := NOT_NUMBERS.sub(lambda found: f" {found[1] or ''} ", bare)) != bare:
        bare = once
    return NUMBER.findall(bare)


def cells(row: str) -> list[str]:
    """Return a row's cells as a reader sees them: links without targets, code without backticks."""
    shown = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", row)
    return [cell.replace("`", "").strip() for cell in re.split(r"(?<!\\)\|", shown)[1:-1]]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    heads = [b.text.lstrip("# ") for b in blocks(page.read_text().splitlines()) if b.text[0] == "#"]
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def complaints(page: Path) -> list[str]:
    """Return a page's faults, one line each."""
    lines = page.read_text().splitlines()
    found: list[tuple[int, str]] = []
    fenced = False
    for number, line in enumerate(lines, 1):
        fenced ^= line.strip().startswith("```")
        if not fenced and len(line) > LINE and not line.lstrip().startswith(("|", "```")):
            found.append((number, f"{len(line)} characters, {LINE} are allowed"))
    for block in blocks(lines):
        for target in LINK.findall(re.sub(r"`[^`]*`", "", block.text)):
            path, _, anchor = target.partition("#")
            other = (page.parent / path).resolve() if path else page
            if "://" in target or target.startswith("mailto:"):
                continue
            if not other.exists():
                found.append((block.line, f"{target} is not there"))
            elif anchor and anchor not in anchors(other):
                found.append((block.line, f"{path or 'this page'} has no heading #{anchor}"))
        if block.row:
            long = [cell for cell in cells(block.text) if len(cell) > CELL]
            found += [(block.line, f"a cell of {len(c)} characters: {c[:40]}...") for c in long]
        elif len(there := numbers(block.text)) > NUMBERS:
            found.append((block.line, f"{len(there)} numbers, make a table: {', '.join(there)}"))
    return [f"{page.relative_to(ROOT)}:{line}: {what}" for line, what in sorted(found)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_readable(page):
    found = complaints(page)
    assert not found, "\n".join(["", *found])


def test_the_table_of_tests_names_files_that_are_there():
    lines = (ROOT / "CONTRIBUTING.md").read_text().splitlines()
    rows = [line.split("|")[1] for line in lines if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`((?:\w+/)+\w*|test_\w+)`", row)]
    assert len(named) > 20
    assert not [n for n in named if not any((ROOT / "tests" / f"{n}{end}").exists()
                                            for end in ("", ".py"))]  # fmt: skip
