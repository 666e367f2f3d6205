"""What every config section has in common: frozen, strict, and each field knows its role.

A field is *identity* when it decides the result, and then counts in the fingerprint of a stage; it
is *execution* when it only decides how the stage runs, and then never counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

Role = Literal["identity", "execution"]

PathOrUri = Annotated[str, Field(min_length=1), AfterValidator(os.path.expanduser)]
"""A path (`~` is the home directory; relative to the current directory) or an fsspec URI."""


@dataclass(frozen=True)
class BrokenRule:
    """A rule between several fields of a section that their values break.

    Args:
        rule: The rule; it quotes no value, for that may come from the environment.
        fields: The fields it is about; it isn't judged while one of them is wrong by itself.
        hint: What to do.
    """

    rule: str
    fields: tuple[str, ...]
    hint: str = ""


def identity(default: Any = ..., *, description: str, **constraints: Any) -> Any:
    """A field that decides the result: changing it makes another artifact."""
    return _field(default, "identity", description, constraints)


def execution(default: Any = ..., *, description: str, **constraints: Any) -> Any:
    """A field that only decides how a stage runs: changing it reuses what is there."""
    return _field(default, "execution", description, constraints)


def _field(default: Any, role: Role, description: str, constraints: dict[str, Any]) -> Any:
    if "default_factory" in constraints:
        return Field(description=description, json_schema_extra={"role": role}, **constraints)
    return Field(default, description=description, json_schema_extra={"role": role}, **constraints)


class Section(BaseModel):
    """Base of every section: immutable, and an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,  # it may be a secret
    )

    def broken_rules(self) -> Iterator[BrokenRule]:
        """The rules between fields that don't hold; a section with such rules overrides this."""
        yield from ()

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        broken = tuple(self.broken_rules())
        if broken:
            rules = "; ".join(rule.rule for rule in broken)
            raise PydanticCustomError("broken_rules", "{rules}", {"rules": rules, "broken": broken})
        return self

    def identity(self) -> dict[str, Any]:
        """The JSON of the identity fields, sub-sections included."""
        chosen: dict[str, Any] = {}
        dumped = self.model_dump(mode="json")
        for name, field in type(self).model_fields.items():
            if role_of(field.json_schema_extra) == "identity":
                chosen[name] = _identity_value(getattr(self, name), dumped[name])
        return chosen


def role_of(extra: Any) -> Role:
    """The role that `identity()` or `execution()` noted in a field."""
    assert isinstance(extra, dict) and extra.get("role") in ("identity", "execution"), extra
    return extra["role"]


def _identity_value(value: Any, dumped: Any) -> Any:
    if isinstance(value, Section):
        return value.identity()
    if isinstance(value, (list, tuple)):
        return [_identity_value(item, raw) for item, raw in zip(value, dumped, strict=True)]
    return dumped
