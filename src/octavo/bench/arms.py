"""Arms: the configurations that a measurement compares, each an engine in this process or a server."""

from __future__ import annotations

import dataclasses
import gc
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.bench.client.openai import OpenAITarget, ServedModel, ServerAddress
from octavo.bench.interrupt import Interrupt
from octavo.bench.load import Load
from octavo.bench.prompts import PromptMaker
from octavo.bench.report import Json
from octavo.bench.run import Run, run_engine, run_server
from octavo.bench.workload import BenchRequest
from octavo.config import EngineConfig
from octavo.errors import ConfigError, OctavoError
from octavo.models.aliases import ALIASES
from octavo.models.checkpoint import Checkpoint
from octavo.models.load import open_checkpoint

if TYPE_CHECKING:
    from octavo.engine.core import EngineCore
    from octavo.models.tokenizer import Tokenizer

PROBE = "word"
DEFAULT_CONTEXT = 4096  # of a server that does not say its own


class Arm(ABC):
    """label: names it among the others, empty where it is the only one. tokenizer: the model's, None where it is not known."""

    label: str

    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer | None: ...

    @property
    @abstractmethod
    def max_model_len(self) -> int:
        """Most tokens of a request."""

    @property
    @abstractmethod
    def config(self) -> Json:
        """What runs, for the document; complete once it was opened."""

    @abstractmethod
    def open(self) -> None:
        """Make it ready to run."""

    @abstractmethod
    def close(self) -> None:
        """Give back what ``open`` took."""

    @abstractmethod
    def run(self, requests: Sequence[BenchRequest], load: Load, round: int, interrupt: Interrupt, title: str) -> Run:
        """Send the requests once."""


class EngineArm(Arm):
    """An engine in this process. It is built by ``open``; its prefix cache is emptied before each run."""

    def __init__(self, config: EngineConfig, prompt_seed: int, label: str = ""):
        self.label = label
        self._config = config
        self._prompt_seed = prompt_seed
        self._checkpoint = checkpoint(config.model)
        self._core: EngineCore | None = None
        self._effective: dict[str, str] = {}

    @property
    def max_model_len(self) -> int:
        from octavo.engine.build import longest_request

        return longest_request(self._config, self._checkpoint)

    @property
    def config(self) -> Json:
        defaults = EngineConfig()
        given = {
            f.name: getattr(self._config, f.name)
            for f in dataclasses.fields(EngineConfig)
            if getattr(self._config, f.name) != getattr(defaults, f.name)
        }
        return {
            "title": f"{self._config.model}, in this process",
            "summary": self._summary(),
            "target": "in process",
            "model": self._config.model,
            "settings": given,
            "engine": self._effective,
            "prompt": "token ids",
            "prompt_seed": self._prompt_seed,
        }

    @property
    def tokenizer(self) -> Tokenizer:
        return self._checkpoint.tokenizer

    def _summary(self) -> str:
        """What of the effective configuration a reader of the figures wants to see beside them."""
        words = {"kv_layout": "{} layout", "block_size": "block size {}", "runner": "{} runner", "attention": "{} attention"}
        words |= {"dtype": "{}", "threads": "{} threads"}
        found = {name: self._effective[name] for name in words if name in self._effective}
        return ", ".join(words[name].format(value.partition(",")[0].partition(" (")[0]) for name, value in found.items())

    def open(self) -> None:
        if self._core is None:
            from octavo.engine.build import build_engine

            self._core = build_engine(self._config, self._checkpoint)
            self._effective = self._core.effective

    def close(self) -> None:
        if self._core is not None:
            self._core.close()
            self._core = None
            gc.collect()  # memory of this engine must not be there while the next one is measured

    def run(self, requests: Sequence[BenchRequest], load: Load, round: int, interrupt: Interrupt, title: str) -> Run:
        assert self._core is not None
        maker = PromptMaker(self._prompt_seed, vocab_size=self._checkpoint.config.vocab, tokenizer=self.tokenizer)
        return run_engine(self._core, requests, load, maker.ids, interrupt=interrupt, title=title)


class ServerArm(Arm):
    """A server. Every round has prompts that it has not seen, so that its prefix cache helps within a round only.

    checkpoint: of the server's model: its tokenizer makes prompts of exact lengths and counts tokens where the server does not.
    context:    most tokens of a request; None: what the server says.
    """

    def __init__(
        self,
        address: ServerAddress,
        model: ServedModel,
        prompt_seed: int,
        *,
        checkpoint: Checkpoint | None = None,
        context: int | None = None,
        ignore_eos: bool = True,
        extra_body: dict[str, Any] | None = None,
        label: str = "",
    ):
        self.label = label
        self._address = address
        self._model = model
        self._prompt_seed = prompt_seed
        self._tokenizer = None if checkpoint is None else checkpoint.tokenizer
        self._overhead = _template_tokens(checkpoint) if address.endpoint == "chat" and checkpoint is not None else 0
        self._context = context
        self._ignore_eos = ignore_eos
        self._extra_body = extra_body or {}

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self._tokenizer

    @property
    def max_model_len(self) -> int:
        return self._context or self._model.max_model_len or DEFAULT_CONTEXT

    @property
    def config(self) -> Json:
        exact = "text of exact length" if self._maker(0).exact else "text of about the length"
        prompt = "token ids" if self._by_ids else exact
        return {
            "title": f"{self._model.id} at {self._address.base}",
            "summary": f"{self._address.endpoint}, prompts as {prompt}",
            "target": "server",
            "url": self._address.base,
            "endpoint": self._address.endpoint,
            "model": self._model.id,
            "prompt": prompt,
            "prompt_seed": self._prompt_seed,
            "ignore_eos": self._ignore_eos,
            "extra_body": self._extra_body,
        }

    def open(self) -> None:
        """Nothing to do: the server runs."""

    def close(self) -> None:
        """Nothing was taken."""

    def run(self, requests: Sequence[BenchRequest], load: Load, round: int, interrupt: Interrupt, title: str) -> Run:
        maker = self._maker(round)
        target = OpenAITarget(
            self._address,
            self._model.id,
            maker.ids if self._by_ids else lambda request: maker.text(request, self._overhead),
            timeout_s=load.timeout_s,
            keep_text=self.tokenizer is not None,
            ignore_eos=self._ignore_eos,
            extra_body=self._extra_body,
        )
        run = run_server(self._address, target, requests, load, interrupt=interrupt, title=title)
        if self.tokenizer is not None:
            for record in run.records:
                if record.output_tokens is None and record.completed:
                    record.output_tokens = len(self.tokenizer.encode(record.text, add_special_tokens=False))
                    record.token_source = "tokenizer"
        return run

    @property
    def _by_ids(self) -> bool:
        return self._address.endpoint == "completions" and self.tokenizer is not None

    def _maker(self, round: int) -> PromptMaker:
        return PromptMaker(self._prompt_seed + round, tokenizer=self.tokenizer)


@cache
def checkpoint(model: str) -> Checkpoint:
    """A model's checkpoint, opened once however many arms use it."""
    return open_checkpoint(model)


def find_checkpoint(name: str | None, model: ServedModel) -> Checkpoint | None:
    """The one that was named, or that of the served model where it lies on this machine under the name that the server gives.

    Raises ModelError where one was named and is not there; None where none was and there is none.
    """
    if name is not None:
        return checkpoint(name)
    for place in (model.root, model.id):
        if place is not None and (place in ALIASES or Path(place).exists()):
            with suppress(OctavoError):
                found = checkpoint(place)
                if found.tokenizer is not None:  # it is read here, where it may turn out to be of no use
                    return found
    return None


def _template_tokens(checkpoint: Checkpoint) -> int:
    """Tokens that the chat template puts around a user's message; 0 where there is no template."""
    template, encode = checkpoint.chat_template, checkpoint.tokenizer.encode
    if template is None:
        return 0
    text = template.render([{"role": "user", "content": PROBE}], add_generation_prompt=True)
    return len(encode(text, add_special_tokens=False)) - len(encode(PROBE, add_special_tokens=False))


def check_arms(arms: Sequence[EngineArm | ServerArm]) -> None:
    """Raise ConfigError where arms would get in each other's way."""
    records = [arm.config.get("settings", {}).get("record") for arm in arms]
    if len(arms) > 1 and any(records):
        raise ConfigError("record is set with several configurations: each engine would write over the other's file.")
