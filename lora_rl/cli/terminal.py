"""The terminal: texts of models, data and errors are shown as they are, never read as markup, emoji names or codes."""

from pathlib import Path

from rich.console import Console


def terminal(*, stderr: bool = False) -> Console:
    """The one kind of console of all commands."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def printable(text: str) -> str:
    """`text`, with a replacement for each character that would steer the terminal."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "�" for letter in text.expandtabs())


def shown_uri(uri: str) -> str:
    """`uri` as one would type it: a path below the working directory is relative to it."""
    path = Path(uri.removeprefix("file://"))
    if uri.startswith("file://") and path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return uri
