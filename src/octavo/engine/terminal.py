"""``octavo generate``: one prompt, streamed to the terminal."""

from __future__ import annotations

import io
import sys
import time

import msgspec

from octavo.config import EngineConfig
from octavo.engine.llm import LLM
from octavo.request import SamplingParams

MAX_TOKENS = 256  # where nothing was asked for: a small model does not always find an end


def generate_to_terminal(config: EngineConfig, prompt: str, params: SamplingParams, *, chat: bool, verbose: bool) -> int:
    """Print the continuation as it is generated; Ctrl-C ends it and keeps what is there. Returns the exit status."""
    llm = LLM.from_config(config)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character shows a question mark
    if verbose:
        for name, value in llm.core.effective.items():
            print(f"{name}: {value}", file=sys.stderr)
    begin, shown, tokens = time.monotonic(), 0, 0
    ids = llm.render([{"role": "user", "content": prompt}]) if chat else llm.tokens(prompt)
    if params.max_tokens is None:
        room = llm.core.scheduler.max_model_len - len(ids["prompt_token_ids"])
        params = msgspec.structs.replace(params, max_tokens=max(1, min(MAX_TOKENS, room)))
    try:
        for output in llm.stream(ids, params):
            completion = output.outputs[0]
            tokens = len(completion.token_ids)
            sys.stdout.write(completion.text[shown:])
            sys.stdout.flush()
            shown = len(completion.text)
    except KeyboardInterrupt:
        pass
    print()
    if verbose:
        wall = time.monotonic() - begin
        print(f"{tokens} tokens in {wall:.2f} s, {tokens / wall:.1f} tok/s, prefill included", file=sys.stderr)
    return 0
