r"""LaTeX's `\boxed{}`, where models are asked to put their answer."""

import re

_BOX = r"\boxed{"
_BRACE = re.compile(r"[{}]")


def last_boxed(text: str) -> str | None:
    r"""What stands in the last complete `\boxed{}`, with its braces balanced; None where there is none."""
    end = len(text)
    while (start := text.rfind(_BOX, 0, end)) >= 0:
        depth = 1
        for brace in _BRACE.finditer(text, start + len(_BOX), end):
            depth += 1 if brace.group() == "{" else -1
            if depth == 0:
                return text[start + len(_BOX) : brace.start()]
        end = start  # An earlier box around this open one is open too.
    return None
