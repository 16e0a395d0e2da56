"""Fields of OpenAI's and vLLM's API that octavo knows of but does not support yet.

Each is refused by name unless it asks for nothing: null, or one of the values given here. Fields that nobody knows are ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from octavo.errors import RequestError
from octavo.server.protocol import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    ContentPart,
    StreamOptions,
    WindowRequest,
    encode,
)

logger = logging.getLogger(__name__)

MOST_LOGGED = 1000  # names of unknown fields that are remembered, and so logged
LONGEST_LOGGED = 100  # characters of such a name

Defaults = dict[str, tuple[Any, ...]]

_BOTH: Defaults = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "min_p": (0,),
    "min_tokens": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "use_beam_search": (False,),
    "early_stopping": (False,),
    "include_stop_str_in_output": (False,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "prompt_logprobs": (),
    "return_tokens_as_token_ids": (False,),
    "return_token_ids": (False,),
    "response_format": ({"type": "text"},),
    "structured_outputs": ({},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "structural_tag": (),
    "logits_processors": ([],),
    "request_id": (),
    "cache_salt": (),
    "kv_transfer_params": (),
    "vllm_xargs": ({},),
}
_CHAT: Defaults = {
    **_BOTH,
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none",),
    "parallel_tool_calls": (True, False),  # concerns tools, and those are refused
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "include_reasoning": (True,),
    "thinking_token_budget": (),
    "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},),
}
_COMPLETION: Defaults = {
    **_BOTH,
    "logprobs": (),
    "suffix": ("",),
    "add_special_tokens": (True,),
    "prompt_embeds": (),
}
_MESSAGE: Defaults = {"tool_calls": ([],), "tool_call_id": (), "function_call": (), "audio": ()}

UNSUPPORTED: dict[type, Defaults] = {
    ChatRequest: _CHAT,
    CompletionRequest: _COMPLETION,
    ChatMessage: _MESSAGE,
    ContentPart: {},
    StreamOptions: {"continuous_usage_stats": (False,)},
    WindowRequest: {},
}

# Fields without effect on the output by their nature: bookkeeping, routing, padding.
WITHOUT_EFFECT = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
        *("include_obfuscation", "refusal", "annotations"),
    }
)

# Another path's field, by the one that is its name here.
MISPLACED: dict[type, dict[str, str]] = {CompletionRequest: {"max_completion_tokens": "max_tokens"}}

_logged: set[str] = set()


def check_fields(kind: type, given: Mapping[str, Any], where: str = "") -> None:
    """Refuse what is known but not supported; log, once for each name, what is not known at all.

    kind: the struct that these fields are for. where: the path of the object that holds them, ending in a dot.
    Raises RequestError.
    """
    unsupported, misplaced = UNSUPPORTED[kind], MISPLACED.get(kind, {})
    known = kind.__struct_fields__  # type: ignore[attr-defined]
    for name, value in given.items():
        if name in known or name in WITHOUT_EFFECT:
            continue
        if name in misplaced:
            if value is not None:
                raise RequestError(f"{where}{name} is no field of this path: use {misplaced[name]} here.", where + name)
        elif name not in unsupported:
            _log_once(where + name)
        elif value is not None and not any(_same(value, accepted) for accepted in unsupported[name]):
            raise RequestError(
                f"{where}{name} is not supported yet: leave it out{_or_set(unsupported[name])}.",
                where + name,
            )


def _same(value: Any, accepted: Any) -> bool:
    """Equal as JSON: true is no 1."""
    return value == accepted and isinstance(value, bool) == isinstance(accepted, bool)


def _or_set(accepted: Iterable[Any]) -> str:
    return "".join(f" or set it to {encode(value).decode()}" for value in accepted)


def _log_once(name: str) -> None:
    name = name[:LONGEST_LOGGED]
    if name not in _logged and len(_logged) < MOST_LOGGED:
        _logged.add(name)
        logger.warning("Requests bring a field %r that octavo does not know; it is ignored.", name)
