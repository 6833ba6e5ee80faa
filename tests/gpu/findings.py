"""What a section of the check finds, said at once: a line on stdout is not lost when its process dies."""

import json
import math
import traceback
from dataclasses import asdict, dataclass

MARK = "@finding "
"""Begins the line of a finding on a section's stdout."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    section: str
    name: str
    value: float | str
    rule: str = ""
    """What the value must be; empty where it is only reported."""
    ok: bool | None = None
    """Whether the rule holds; null without one."""

    @classmethod
    def of_line(cls, line: str) -> "Finding | None":
        """The finding that a line of output holds, if it holds one."""
        return cls(**json.loads(line.removeprefix(MARK))) if line.startswith(MARK) else None

    def row(self) -> list[str]:
        """Cells of a table."""
        value = f"{self.value:.4g}" if isinstance(self.value, float) else str(self.value)
        verdict = "" if self.ok is None else "yes" if self.ok else "**NO**"
        return [self.section, _cell(self.name), _cell(value)[:300], self.rule, verdict]


class Findings:
    """Of one section."""

    def __init__(self, section: str) -> None:
        self._section = section

    def note(self, name: str, value: float | str) -> None:
        """A value without a rule."""
        self._say(Finding(section=self._section, name=name, value=value))

    def at_most(self, name: str, value: float, limit: float) -> None:
        # NaN compares false with everything: it breaks the rule
        ok = value <= limit and math.isfinite(value)
        self._say(Finding(section=self._section, name=name, value=float(value), rule=f"≤ {limit:g}", ok=ok))

    def at_least(self, name: str, value: float, limit: float) -> None:
        ok = value >= limit and math.isfinite(value)
        self._say(Finding(section=self._section, name=name, value=float(value), rule=f"≥ {limit:g}", ok=ok))

    def equal(self, name: str, value: object, expected: object) -> None:
        ok = value == expected
        self._say(Finding(section=self._section, name=name, value=str(value), rule=f"= {expected}", ok=ok))

    def failed(self, error: BaseException) -> None:
        """The section ends here, for this reason."""
        traceback.print_exception(error)
        reason = f"{type(error).__name__}: {error}"
        self._say(Finding(section=self._section, name="error", value=reason, rule="none", ok=False))

    def _say(self, finding: Finding) -> None:
        print(MARK + json.dumps(asdict(finding)), flush=True)


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")
