"""Markdown that shows what others wrote and renders none of it."""

import re

_MARKDOWN = re.compile(r"([\\`*_\[\]<>|!#~&$])")


def cell(text: str) -> str:
    """`text` on one line, fit to be a table's cell."""
    return _MARKDOWN.sub(r"\\\1", one_line(text))


def one_line(text: str) -> str:
    """`text` with each run of blanks as one space."""
    return " ".join(text.split())
