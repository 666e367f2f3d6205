"""The sandbox in which chat templates run: the same one that `transformers` uses, without it.

A template comes from a model folder and is untrusted: it sees plain JSON values only, can't reach
the interpreter, and has no clock (`strftime_now` is bound to `data.template_date`).
Source of the rules: `transformers/utils/chat_template_utils.py` (5.24).
"""

from __future__ import annotations

import datetime
import json
from functools import lru_cache
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from configs.errors import ConfigError


class TemplateNeedsDate(ConfigError):  # noqa: N818
    """The template asks for today's date, and the experiment names none."""

    def __init__(
        self,
        rule: str = "the chat template calls strftime_now, and no date is set",
        *,
        where: str = "data.template_date",
        hint: str = "set a fixed date, such as data.template_date: 2026-01-01",
        code: str = "template_needs_date",
    ) -> None:
        super().__init__(rule, where=where, hint=hint, code=code)


@lru_cache(maxsize=16)
def compile_template(source: str, date: datetime.date | None) -> jinja2.Template:
    """The compiled template; one source and date are compiled once a process.

    Args:
        source: Jinja text of the chat template.
        date: What `strftime_now` formats; null: a template that calls it is refused.

    Raises:
        ConfigError: The text isn't a Jinja template.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
    )

    def strftime_now(format: str) -> str:
        if date is None:
            raise TemplateNeedsDate
        return datetime.datetime.combine(date, datetime.time()).strftime(format)

    environment.filters["tojson"] = _tojson
    cast("dict[str, Any]", environment.globals).update(
        raise_exception=_raise_exception,
        strftime_now=strftime_now,
        dict=_Dict(),
        namespace=_GuardedNamespace,
    )
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(
            f"the chat template isn't valid Jinja: {error.message} (line {error.lineno})",
            where="model.tokenizer.chat_template",
            hint="mend the template, or name another one, such as chatml",
            code="template_syntax",
        ) from error


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` renders what it holds."""

    tags = {"generation"}  # noqa: RUF012  (declared so by jinja2)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_render_body")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _render_body(self, caller: Macro) -> str:
        return caller()


class _Dict:
    """`dict(...)` in a template, without the class's other attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _GuardedNamespace(Namespace):
    """`namespace(...)` without names that reach into the interpreter."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # The odd signature lets a template call `namespace(self=...)`.
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a template can't store the attribute {name!r}")


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
