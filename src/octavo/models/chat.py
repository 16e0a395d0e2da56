"""ChatTemplate: a model's own way of turning a conversation into a prompt."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from octavo.errors import ModelError, RequestError


class ChatTemplate:
    """A Jinja template in a sandbox, with what transformers gives such templates: ``raise_exception``, ``strftime_now``,
    ``tojson``, loop controls, and the texts of special tokens (``bos_token``, ``eos_token``, ...).

    ``where`` names the template's file in errors. Raises ModelError where the template is not valid.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], where: str = "The chat template"):
        self.source = source
        self._special_tokens = dict(special_tokens)
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationBlock]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ModelError(f"{where}: the chat template is not valid: {error}.") from None

    def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **extra: Any) -> str:
        """The prompt. It already holds its special tokens: encode it with ``add_special_tokens=False``.

        messages: each has a ``role``; a ``content`` given as a list of text parts is joined by newlines.
        extra: more variables for the template, such as ``tools``.

        Raises RequestError with the template's own words where it rejects the messages.
        """
        variables = {**self._special_tokens, "tools": None, "documents": None, **extra}
        plain = [_plain(message, i) for i, message in enumerate(messages)]
        try:
            return self._template.render(variables, messages=plain, add_generation_prompt=add_generation_prompt)
        except Exception as error:  # a template is a program: it can fail in every way a program can
            words = str(error) or type(error).__name__
            raise RequestError(f"The model's chat template rejects these messages: {words}", "messages") from error


def _plain(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    """The message with its content as one text."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(f"messages[{index}] is not an object with a role.", "messages")
    content = message.get("content")
    if isinstance(content, str) or content is None:
        return dict(message)
    if not isinstance(content, (list, tuple)):
        raise RequestError(f"messages[{index}].content is neither a string nor a list of text parts.", "messages")
    return {**message, "content": "\n".join(_text(part, f"messages[{index}].content[{i}]") for i, part in enumerate(content))}


def _text(part: Any, where: str) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": str(kind)} if kind != "text":
            raise RequestError(f'{where} is of type "{kind}": only text parts are supported.', "messages")
    raise RequestError(f'{where} is not a text part: {{"type": "text", "text": ...}} is accepted.', "messages")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes what is special in HTML, which a prompt must not have.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _GenerationBlock(jinja2.ext.Extension):
    """``{% generation %}...{% endgeneration %}`` marks the assistant's words for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Callable[[], str]) -> str:
        return caller()
