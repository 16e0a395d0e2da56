"""PromptReader: from the body of an OpenAI request to what of its prompt can be hashed and counted."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.bench.traces.fields import shown
from octavo.bench.traces.source import BYTES_PER_TOKEN, DamagedError
from octavo.errors import RequestError

if TYPE_CHECKING:
    from octavo.models.chat import ChatTemplate
    from octavo.models.tokenizer import Tokenizer

MOST_COPIES = 128  # answers to one prompt that a request may ask for
TEMPLATE_FIELDS = ("tools", "documents")  # of a chat request, that templates know under the same name

_encode = msgspec.json.Encoder(order="sorted").encode


@dataclass(frozen=True, slots=True)
class Prompt:
    """data: what is hashed: token ids as little-endian int32 where ``exact``, else text as UTF-8. copies: answers asked for."""

    data: bytes
    exact: bool
    copies: int = 1

    @property
    def tokens(self) -> int:
        """Its length, counted where it is exact, else estimated; at least 1."""
        return max(1, len(self.data) // 4 if self.exact else round(len(self.data) / BYTES_PER_TOKEN))


class PromptReader:
    """With the model's tokenizer (and, for conversations, its chat template) prompts become the token ids that the server sees.
    Without, text stays text, and a conversation becomes one in a form of our own, in which equal beginnings stay equal."""

    def __init__(self, tokenizer: Tokenizer | None = None, template: ChatTemplate | None = None):
        self.tokenizer = tokenizer
        self._template = template

    def read(self, body: Mapping[str, Any]) -> list[Prompt]:
        """The request's prompts: one, but for a completion request with a list of them. Raises DamagedError for what is none."""
        copies = body.get("n")
        if copies is None:
            copies = 1
        if isinstance(copies, bool) or not isinstance(copies, int) or not 1 <= copies <= MOST_COPIES:
            raise DamagedError(f"n is {shown(copies)}: an integer from 1 to {MOST_COPIES} is accepted")
        if "messages" in body:
            data, exact = self._conversation(body)
            return [Prompt(data, exact, copies)]
        return [Prompt(*self._completion(one), copies) for one in _prompts(body.get("prompt"))]

    def _completion(self, prompt: str | list[int]) -> tuple[bytes, bool]:
        if isinstance(prompt, list):
            return _ids(prompt), True
        if self.tokenizer is not None:
            try:
                return _ids(self.tokenizer.encode(prompt)), True
            except RequestError:  # not valid Unicode: the server refuses it
                pass
        return prompt.encode("utf-8", "surrogatepass"), False

    def _conversation(self, body: Mapping[str, Any]) -> tuple[bytes, bool]:
        messages = body["messages"]
        if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
            raise DamagedError(f"messages is {shown(messages)}: a list of messages is accepted")
        if self.tokenizer is not None and self._template is not None:
            extra = {name: body[name] for name in TEMPLATE_FIELDS if body.get(name) is not None}
            if isinstance(kwargs := body.get("chat_template_kwargs"), dict):
                extra |= {str(name): value for name, value in kwargs.items()}
            seen = [message | {"role": "system"} if message.get("role") == "developer" else message for message in messages]
            try:
                text = self._template.render(seen, **{"add_generation_prompt": True} | extra)
                return _ids(self.tokenizer.encode(text, add_special_tokens=False)), True
            except (RequestError, TypeError):  # a template rejects what it does not know; an extra name may clash
                pass
        parts = [_encode(body[name]) for name in TEMPLATE_FIELDS if body.get(name) is not None]
        for message in messages:
            content = message.get("content")
            # The content last and unquoted, so that a longer one begins with a shorter one.
            parts.append(_encode({name: value for name, value in message.items() if name != "content"}))
            parts.append(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else _encode(content))
        return b"\n".join(parts), False


def _prompts(prompt: Any) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if all(_is_id(one) for one in prompt):
            return [prompt]
        if all(isinstance(one, str) or (isinstance(one, list) and one and all(_is_id(i) for i in one)) for one in prompt):
            return prompt
    raise DamagedError(f"prompt is {shown(prompt)}: text, token ids, or a list of either is accepted")


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _ids(ids: list[int]) -> bytes:
    return struct.pack(f"<{len(ids)}i", *ids)
