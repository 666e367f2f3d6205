"""The one exception tree of modelmill: each error says what is wrong, where, and what to do.

An error a user can cause is raised as one of these and printed without a traceback; anything else
is a bug and keeps its traceback. The exit code of the command line is the class's `exit_code`.
"""

from __future__ import annotations

from typing import ClassVar


class ModelmillError(Exception):
    """Base of all errors a user can cause.

    Args:
        rule: What is wrong, as one sentence.
        where: The place: a config path (`train.learning_rate`), `file:line`, a URI, a resource.
        hint: What to do, with the nearest right value where there is one.
        code: Short stable identifier for programs, such as `unknown_key`.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, rule: str, *, where: str = "", hint: str = "", code: str = "error") -> None:
        super().__init__(rule)
        self.rule = rule
        self.where = where
        self.hint = hint
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.rule, self.where, self.hint, self.code))

    def as_dict(self) -> dict[str, str]:
        """The error as the `error` object of `--json`: code, where, rule, hint."""
        return {"code": self.code, "where": self.where, "rule": self.rule, "hint": self.hint}

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        hint = f"\n  {self.hint}" if self.hint else ""
        return f"{place}{self.rule}{hint}"


def _rebuild(
    kind: type[ModelmillError], rule: str, where: str, hint: str, code: str
) -> ModelmillError:
    return kind(rule, where=where, hint=hint, code=code)


class ConfigError(ModelmillError):
    """The config is wrong (exit code 2)."""

    exit_code = 2


class DataError(ModelmillError):
    """The data is wrong (exit code 3)."""

    exit_code = 3


class ResourceError(ModelmillError):
    """The machine, the storage or the cluster can't do it (exit code 4)."""

    exit_code = 4
