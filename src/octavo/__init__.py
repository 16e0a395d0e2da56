"""octavo: an LLM inference engine in which the layout of the KV cache is a measured choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.config import EngineConfig
from octavo.errors import ConfigError, EngineDeadError, ModelError, OctavoError, RequestError
from octavo.request import CompletionOutput, RequestOutput, SamplingParams
from octavo.version import __version__

if TYPE_CHECKING:
    from octavo.engine.llm import LLM

__all__ = [
    "LLM",
    "CompletionOutput",
    "ConfigError",
    "EngineConfig",
    "EngineDeadError",
    "ModelError",
    "OctavoError",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name == "LLM":  # late: `octavo --help` and the server's own process do not need the engine
        from octavo.engine.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
