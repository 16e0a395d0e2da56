"""``octavo generate``: one prompt, streamed to the terminal."""

from __future__ import annotations

import sys
import time

from octavo.config import EngineConfig
from octavo.engine.llm import LLM
from octavo.request import SamplingParams


def generate_to_terminal(config: EngineConfig, prompt: str, params: SamplingParams, *, chat: bool, verbose: bool) -> int:
    """Print the continuation as it is generated; Ctrl-C ends it and keeps what is there. Returns the exit status."""
    llm = LLM.from_config(config)
    if verbose:
        for name, value in llm.core.effective.items():
            print(f"{name}: {value}", file=sys.stderr)
    begin, shown, tokens = time.monotonic(), 0, 0
    try:
        for output in llm.stream(llm.render([{"role": "user", "content": prompt}]) if chat else prompt, params):
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
