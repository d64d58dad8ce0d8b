"""Finds the shell commands in the fenced blocks of Markdown pages."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path

SHELL = ("bash", "sh", "shell", "console")  # languages of blocks that hold commands
# A block without a language holds commands if a line of it begins with one of these programs.
SIGNS = ("python", "python3", "pip", "uv", "make", "flwr", "ssh", "sudo", "git", "export", "ls")
KEYWORDS = {
    *("if", "then", "elif", "else", "fi", "for", "in", "while", "until", "do", "done", "case"),
    *("esac", "{", "}", "!", "time"),
}
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
ELLIPSIS = "..."  # an argument of this kind stands for others


@dataclass(frozen=True)
class Command:
    """A command of a page: the program and its arguments; "..." stands for some of them."""

    page: Path
    line: int
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        """The command in one line."""
        return shlex.join(self.words)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. `line`: that of its first line inside; `text`: its content."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def is_shell(self) -> bool:
        """Whether the block holds commands."""
        if self.language:
            return self.language in SHELL
        lines = (line.lstrip("( ") for line in self.text.splitlines())
        begins = (re.sub(r"^(?:[A-Za-z_]\w*=\S* +)+", "", line) for line in lines)  # no A=1 B=2
        return any(line.split(" ")[0] in SIGNS for line in begins if line)

    def commands(self) -> list[Command]:
        """Return the block's commands in their order. Raises `ValueError` for an open quote."""
        return [
            Command(self.page, number, tuple(words))
            for number, line in _logical_lines(self.text, self.line)
            for words in _simple_commands(line)
        ]


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page; a block may be indented, as in a list."""
    found: list[Block] = []
    begin, language, lines = 0, "", list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if not line.lstrip().startswith("```"):
            lines.append(line)
        elif begin:
            found.append(Block(page, begin, language, "\n".join(lines)))
            begin = 0
        else:
            begin, language, lines = number + 1, line.strip().strip("`").strip(), []
    return found


def _logical_lines(text: str, first: int) -> Iterator[tuple[int, str]]:
    """Yield lines with the numbers of their beginnings: whole after a backslash, and in quotes."""
    held, begin = "", first
    for number, line in enumerate(text.splitlines(), first):
        held, begin = (f"{held}\n{line}", begin) if held else (line, number)
        if held.endswith("\\"):
            held = held[:-1]
            continue
        try:
            _tokens(held)
        except ValueError:  # an open quote: the next line belongs to it
            continue
        yield begin, held
        held = ""
    if held:
        raise ValueError(f"line {begin} has an open quote or ends in a backslash")


def _tokens(line: str) -> list[str]:
    """Split a line as a shell does; operators are tokens of their own."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    return list(lexer)


def _simple_commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each simple command of a line, without the variables that it sets."""
    words: list[str] = []
    target = False  # the next token is the file of a redirection
    for token in [*_tokens(line), ";"]:
        if token and set(token) <= set("<>&") and set(token) & set("<>"):
            if words and words[-1] in ("1", "2"):  # the stream that is redirected
                words.pop()
            target = True
        elif token and set(token) <= set("();|&"):
            found = [*dropwhile(lambda w: w in KEYWORDS or ASSIGNMENT.fullmatch(w), words)]
            if found and words[0] != "for":  # whose words are no command
                yield found
            words, target = [], False
        elif target:
            target = False
        else:
            words.append(token)
