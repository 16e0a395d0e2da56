"""TextSide: the tokenizer and chat template with which a capture turns text into token ids, where it can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.bench.client.openai import find_model, parse_url
from octavo.errors import ModelError, OctavoError
from octavo.models.load import open_checkpoint

if TYPE_CHECKING:
    from octavo.models.chat import ChatTemplate
    from octavo.models.tokenizer import Tokenizer

ESTIMATED = "Text is not tokenised: the lengths of what prompts share are estimates. --tokenizer MODEL makes them exact."


@dataclass(frozen=True, slots=True)
class TextSide:
    """told: a sentence that says what becomes of text."""

    tokenizer: Tokenizer | None = None
    template: ChatTemplate | None = None
    told: str = ESTIMATED


def open_text_side(model: str) -> TextSide:
    """The model's: a folder, a GGUF file or an alias. Raises ModelError where there is none of that name."""
    checkpoint = open_checkpoint(model)
    template = checkpoint.chat_template
    told = f"Text is tokenised as {model} does it" + (
        "." if template is not None else "; it has no chat template, so conversations stay text."
    )
    return TextSide(checkpoint.tokenizer, template, told)


def served_text_side(upstream: str) -> TextSide:
    """That of the model which the server says it serves, where this machine has it; else none."""
    try:
        served = find_model(parse_url(upstream, None, setting="upstream"), None)
    except OctavoError:
        return TextSide()
    for name in (served.root, served.id):
        if name:
            try:
                return open_text_side(name)
            except ModelError:
                continue
    return TextSide()
