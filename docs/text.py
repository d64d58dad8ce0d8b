"""Turns comments and docstrings of code into Markdown, and wraps lines."""

from __future__ import annotations

import inspect
import re
import textwrap

KEY = (  # a.b, a.b=, a=, a=b, a_b, a/b; not Mbit/s
    r"(?<![`\w./])((?:[a-z_]+\.)*[a-z_]+=(?:[\w.]*\w)?|[a-z_]+(?:\.[a-z_]+)+|[a-z]+_[a-z_]+"
    r"|(?![kM]bit/s)[\w.]+(?:/[\w*-]+)+)(?![\w`(])"
)


def wrap(text: str, first: str = "", rest: str = "") -> list[str]:
    """Return text in lines of at most 100 characters; no line begins like an item of a list."""
    held = re.sub(r" (?=([-+*#>=|]|\d+[.)])( |$))", "\0", " ".join(text.split()))
    lines = textwrap.wrap(
        held, 100, initial_indent=first, subsequent_indent=rest,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace("\0", " ") for line in lines]


def sentence(text: str) -> str:
    """Return a text with a full stop, and with backticks around keys, names such as a_b, paths."""
    coded = re.sub(f"`[^`]*`|{KEY}", lambda found: f"`{found[1]}`" if found[1] else found[0], text)
    return coded if coded.endswith((".", ":")) else coded + "."


def summary(method: type) -> str:
    """Return the first sentence of a class's docstring, with code in Markdown."""
    first = (inspect.getdoc(method) or "").split("\n\n")[0].replace("``", "`")
    return sentence(re.split(r"(?<=\.)\s", " ".join(first.split()))[0])


def told(docstring: str) -> list[str]:
    """Return a docstring in lines; a clause that begins with names of options is a list item."""
    lines: list[str] = []
    for paragraph in docstring.split("\n\n"):
        clauses = re.split(r"(?<=[.;]) (?=`\w+`(?:, `\w+`)*: )", " ".join(paragraph.split()))
        lines.append("")
        for clause in clauses:
            mark = ("* ", "  ") if clause.startswith("`") else ("", "")
            lines += wrap(clause.removesuffix(";").removesuffix(".") + ".", *mark)
    return lines
