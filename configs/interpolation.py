"""`${env:NAME}` and `${env:NAME:default}` inside the texts of a config.

`$${` stands for the two characters `${`; every other `${` must begin a well-formed reference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_TOKEN = re.compile(
    r"(?P<escaped>\$\$\{)"
    r"|\$\{env:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<has_default>:(?P<default>[^{}]*))?\}"
    r"|(?P<broken>\$\{)"
)


@dataclass(frozen=True)
class Expanded:
    """A text with its references replaced.

    Args:
        text: The result; a missing variable has left nothing.
        referenced: There was at least one reference.
        missing: Names of variables that aren't set and have no default.
        broken: There was a `${` that begins no reference.
    """

    text: str
    referenced: bool
    missing: tuple[str, ...]
    broken: bool


def expand(text: str, environ: Mapping[str, str]) -> Expanded:
    """Replace the references in `text` by the values of `environ`.

    Example:
        >>> expand("${env:ROOT:/tmp}/runs", {}).text
        '/tmp/runs'
    """
    missing: list[str] = []
    referenced = broken = False

    def replacement(match: re.Match[str]) -> str:
        nonlocal referenced, broken
        if match["escaped"]:
            return "${"
        if match["broken"]:
            broken = True
            return match.group()
        referenced = True
        name = match["name"]
        if name not in environ and not match["has_default"]:
            missing.append(name)
        return environ.get(name, match["default"] or "")

    result = _TOKEN.sub(replacement, text)
    return Expanded(result, referenced, tuple(missing), broken)


def escape(text: str) -> str:
    """The text that `expand` turns into `text`."""
    return text.replace("${", "$${")
