"""Puts an engine together from its settings, and refuses what cannot take effect."""

from __future__ import annotations

from octavo import machine
from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.errors import ConfigError
from octavo.kv.arena import KVSpec
from octavo.kv.cache import KVCache
from octavo.kv.factory import build_cache
from octavo.models.checkpoint import Checkpoint
from octavo.models.config import DecoderConfig
from octavo.models.decoder import build_program
from octavo.models.load import open_checkpoint
from octavo.models.program import Program
from octavo.observe.clock import RealClock
from octavo.runner.base import Runner
from octavo.runner.choice import Choice, choose_runner
from octavo.scheduler.scheduler import Scheduler


def build_engine(config: EngineConfig, checkpoint: Checkpoint | None = None) -> EngineCore:
    """An engine that is ready to step. Raises ConfigError or ModelError before any memory is committed."""
    checkpoint = checkpoint or open_checkpoint(config.model)
    model = checkpoint.config
    program = build_program(model)
    choice = choose_runner(config, program)
    spec = KVSpec(model.layers, model.kv_heads, model.head_dim, choice.kv_dtype)
    memory = config.kv_memory or machine.default_kv_memory()
    max_model_len = _max_model_len(config, model, memory // spec.token_bytes)
    kv = _build_cache(config, spec, memory, max_model_len)
    runner = _build_runner(config, choice, program, checkpoint, max_model_len)
    clock = RealClock()
    scheduler = Scheduler(
        kv,
        clock,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=max_model_len,
        max_preemptions=config.max_preemptions,
        vocab=model.vocab,
        eos_token_ids=model.eos_token_ids,
        seed=config.seed,
    )
    effective = {
        "model": f"{config.model} ({model.architecture}, {model.layers} layers, context {model.context})",
        **runner.describe(),
        **({"native runner": f"not used: {choice.why}"} if choice.why else {}),
        **kv.describe(),
        "max_model_len": f"{max_model_len}",
        "batch": f"{config.max_num_seqs} sequences, {config.max_num_batched_tokens} tokens a step",
        "scheduling": f"chunked prefill mixed with decode, not overlapped, {config.max_preemptions} preemptions a request",
    }
    return EngineCore(scheduler, kv, runner, clock, effective, config.block_size)


def _build_runner(config: EngineConfig, choice: Choice, program: Program, checkpoint: Checkpoint, max_model_len: int) -> Runner:
    threads = config.threads or len(machine.allowed_cpus())
    if choice.name == "native":
        from octavo.runner.native_runner import NativeRunner

        return NativeRunner(
            program,
            checkpoint,
            dtype=choice.dtype,
            attention=config.attention,
            threads=threads,
            slots=config.max_num_seqs,
            max_model_len=max_model_len,
            max_batched_tokens=config.max_num_batched_tokens,
            kv_dtype=choice.kv_dtype,
            eager=config.enforce_eager,
        )
    from octavo.runner.torch_runner import TorchRunner  # imports torch: 1.2 s or more, so only once it is needed

    return TorchRunner(
        program,
        checkpoint,
        dtype=choice.dtype,
        attention=config.attention,
        threads=threads,
        slots=config.max_num_seqs,
        max_model_len=max_model_len,
        max_batched_tokens=config.max_num_batched_tokens,
    )


def _max_model_len(config: EngineConfig, model: DecoderConfig, room: int) -> int:
    """The setting, or the most that both the model's context and the KV memory hold."""
    asked = config.max_model_len
    if asked is None:
        if config.kv_layout != "contiguous":
            room -= room % config.block_size
        if room < 1:
            raise ConfigError(f"kv_memory holds {room} tokens of this model: at least one block is needed.")
        return min(model.context, room)
    if asked > model.context:
        raise ConfigError(f"max_model_len is {asked}: at most {model.context} is accepted, the context of this model.")
    return asked


def _build_cache(config: EngineConfig, spec: KVSpec, memory: int, max_model_len: int) -> KVCache:
    kv = build_cache(
        config.kv_layout,
        spec,
        capacity=memory // spec.token_bytes,
        slots=config.max_num_seqs,
        max_model_len=max_model_len,
        block_size=config.block_size,
        contiguous_reserve=config.contiguous_reserve or "max-len",
        hybrid_threshold=config.hybrid_threshold or 512,
        prefix_caching=config.prefix_caching,
    )
    if kv.longest < max_model_len:
        raise ConfigError(
            f"max_model_len is {max_model_len}, but the KV memory ({memory / 2**20:.0f} MiB) holds a sequence of at most "
            f"{kv.longest} tokens: lower max_model_len or give at least "
            f"{(max_model_len + config.block_size) * spec.token_bytes / 2**20:.0f} MiB with kv_memory."
        )
    return kv
