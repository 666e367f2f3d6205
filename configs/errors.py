"""The one exception tree of modelmill: each error says what is wrong, where, and what to do.

An error a user can cause is raised as one of these and printed without a traceback; anything else
is a bug and keeps its traceback. The exit code of the command line is the class's `exit_code`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar


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

    def as_dict(self) -> dict[str, Any]:
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


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a config.

    Args:
        rule: What is wrong, with the value that was given.
        where: The config path, such as `train.learning_rate`.
        hint: What to do, with the nearest right value where there is one.
        code: Short stable identifier for programs, such as `unknown_key`.
        at: Where it was written: `file:line`, `override`, or the name of the whole config.
    """

    rule: str
    where: str = ""
    hint: str = ""
    code: str = "config"
    at: str = ""

    def __str__(self) -> str:
        place = f"{self.where} ({self.at})" if self.at not in ("", self.where) else self.where
        hint = f"\n  {self.hint}" if self.hint else ""
        return f"{place}: {self.rule}{hint}" if place else f"{self.rule}{hint}"


class ConfigFaults(ConfigError):  # noqa: N818 (it is many errors in one)
    """Everything that is wrong with a config; `rule`, `where` and the like are the first fault's.

    Args:
        faults: At least one.
        origin: The file, or what else the config came from.
    """

    def __init__(self, faults: Sequence[Fault], *, origin: str) -> None:
        first = faults[0]
        super().__init__(first.rule, where=first.where, hint=first.hint, code=first.code)
        self.faults = tuple(faults)
        self.origin = origin

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_faults, (self.faults, self.origin))

    def as_dict(self) -> dict[str, Any]:
        """Code, where, rule and hint of the first fault, and the list of all `faults`."""
        return {**super().as_dict(), "faults": [asdict(fault) for fault in self.faults]}

    def __str__(self) -> str:
        if len(self.faults) == 1:
            return str(self.faults[0])
        listed = "\n".join(str(fault) for fault in self.faults)
        return f"{len(self.faults)} faults in {self.origin}:\n{listed}"


def _rebuild_faults(faults: tuple[Fault, ...], origin: str) -> ConfigFaults:
    return ConfigFaults(faults, origin=origin)


class DataError(ModelmillError):
    """The data is wrong (exit code 3)."""

    exit_code = 3


class ResourceError(ModelmillError):
    """The machine, the storage or the cluster can't do it (exit code 4)."""

    exit_code = 4
