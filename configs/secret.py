"""A secret is kept as a reference to the environment, and read only where it is used."""

from __future__ import annotations

import os
import re
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from configs.errors import ConfigError

_REFERENCE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")


class Secret:
    """An `${env:NAME}` reference. Printing, dumping and pickling it shows the name only."""

    def __init__(self, reference: str) -> None:
        match = _REFERENCE.fullmatch(reference)
        if match is None:
            raise ValueError("a secret is given as ${env:NAME}, never as text")
        self.reference = reference
        self.name = match.group(1)

    def reveal(self) -> str:
        """The secret itself.

        Raises:
            ConfigError: The environment variable isn't set.
        """
        if self.name not in os.environ:
            raise ConfigError(
                f"environment variable {self.name} isn't set",
                where=self.reference,
                hint=f"export {self.name}=...",
                code="environment_missing",
            )
        return os.environ[self.name]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"Secret({self.reference})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from_text = core_schema.no_info_after_validator_function(cls, core_schema.str_schema())
        return core_schema.json_or_python_schema(
            json_schema=from_text,
            python_schema=core_schema.union_schema(
                [core_schema.is_instance_schema(cls), from_text]
            ),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda secret: secret.reference
            ),
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "pattern": _REFERENCE.pattern}
