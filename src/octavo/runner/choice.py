"""Which runner computes, and in what: the settings and what this installation, CPU and model allow."""

from __future__ import annotations

import os
from dataclasses import dataclass

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.models.program import Program
from octavo.native import isa, library
from octavo.native.program import unsupported
from octavo.runner.dtype import resolve_dtype


@dataclass(frozen=True, slots=True)
class Choice:
    """name: "native" or "torch"; dtype: of weights and activations; kv_dtype: of the KV cache; why: for the line printed at
    start, where runner=auto did not take the native one."""

    name: str
    dtype: str
    kv_dtype: str
    why: str | None = None


def choose_runner(config: EngineConfig, program: Program) -> Choice:
    """The runner for these settings and this model. Raises ConfigError where they ask for what that runner does not have."""
    against = None if config.runner == "torch" else _against_native(config, program)
    if config.runner == "native" and against:
        raise ConfigError(f"runner is native, but {against}.")
    if config.runner != "torch" and against is None:
        kv_dtype = "bfloat16" if config.kv_cache_dtype == "auto" else config.kv_cache_dtype
        return Choice("native", "bfloat16", kv_dtype)
    if config.enforce_eager:
        raise ConfigError(
            f"enforce_eager is true, but {_torch_runs(against)}, which always calls operation by operation: leave it out."
        )
    if config.quantized_matmul is not None:
        raise ConfigError(
            f"quantized_matmul is {config.quantized_matmul}, but {_torch_runs(against)}, which widens weights: leave it out."
        )
    dtype = resolve_dtype(config.dtype, program.config.dtype)
    if config.kv_cache_dtype not in ("auto", dtype):
        raise ConfigError(
            f"kv_cache_dtype is {config.kv_cache_dtype}, but {_torch_runs(against)} in {dtype}: auto or {dtype} is accepted."
        )
    return Choice("torch", dtype, dtype, against)


def _torch_runs(why: str | None) -> str:
    return "the torch runner computes" + (f" ({why})" if why else "")


def _against_native(config: EngineConfig, program: Program) -> str | None:
    """Why the native runner cannot be used; None where it can."""
    if config.profile is not None:
        return (
            f"profile is {config.profile}, and torch's profiler sees the torch runner only; record alone takes in every step of "
            "the native one"
        )
    if config.attention == "gather":
        return f"attention={config.attention} exists on the torch runner only"
    if config.dtype in ("float32", "float16"):
        return f"dtype={config.dtype} exists on the torch runner only"
    if config.dtype == "auto" and program.config.dtype == "float32":
        return "the model's weights are float32, which the torch runner alone computes in; dtype=bfloat16 rounds them"
    if not isa.built():
        if isa.VARIABLE in os.environ:
            raise ConfigError(f"{isa.VARIABLE} is {os.environ[isa.VARIABLE]}, but {library.NOT_COMPILED}.")
        return library.NOT_COMPILED
    kv_dtype = "int8" if config.kv_cache_dtype == "int8" else "bfloat16"
    return unsupported(library.load(), program, kv_dtype)
