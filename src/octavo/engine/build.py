"""Puts an engine together from its settings, and refuses what cannot take effect."""

from __future__ import annotations

from collections.abc import Callable

from octavo import machine
from octavo.config import (
    DEFAULT_BLOCK_SIZE,
    DEFAULT_HYBRID_THRESHOLD,
    DEFAULT_MAX_PREEMPTIONS,
    DEFAULT_SWAP_SPACE,
    EngineConfig,
)
from octavo.engine.core import EngineCore
from octavo.errors import ConfigError
from octavo.kv.arena import Arena, KVSpec
from octavo.kv.cache import KVCache
from octavo.kv.factory import build_cache, can_share, taken
from octavo.models.checkpoint import Checkpoint
from octavo.models.config import DecoderConfig
from octavo.models.decoder import build_program
from octavo.models.load import open_checkpoint
from octavo.models.program import Program
from octavo.observe.clock import RealClock
from octavo.observe.file import RecordFile
from octavo.observe.profile import profile_path
from octavo.observe.recorder import Recorder
from octavo.runner.base import Runner
from octavo.runner.choice import Choice, choose_runner
from octavo.scheduler.preemption import Preemption
from octavo.scheduler.scheduler import Scheduler
from octavo.units import format_bytes, parse_bytes

SHORTEST = 2  # tokens of the shortest request: one of a prompt, one of an output

MakeRunner = Callable[[EngineConfig, Choice, Program, Checkpoint, int], Runner]


def build_engine(config: EngineConfig, checkpoint: Checkpoint | None = None, make_runner: MakeRunner | None = None) -> EngineCore:
    """An engine that is ready to step. Raises ConfigError or ModelError before any memory is committed.

    make_runner: what gives it a runner, from the arguments of ``build_runner``; None: that makes a new one. One runner can serve
    several engines in turn.
    """
    checkpoint = checkpoint or open_checkpoint(config.model)
    model = checkpoint.config
    program = build_program(model)
    choice = choose_runner(config, program)
    spec = KVSpec(model.layers, model.kv_heads, model.head_dim, choice.kv_dtype)
    memory = _kv_memory(config)
    max_model_len = _max_model_len(config, model, memory, spec)
    kv = _build_cache(config, spec, memory, max_model_len)
    clock = RealClock()
    recorder = Recorder(clock, RecordFile(config.record) if config.record else None)
    runner = (make_runner or build_runner)(config, choice, program, checkpoint, max_model_len)
    max_preemptions = DEFAULT_MAX_PREEMPTIONS if config.max_preemptions is None else config.max_preemptions
    grows = config.kv_layout != "contiguous" or config.contiguous_reserve == "grow"
    preemption = Preemption(config.preemption or "recompute", machine.copied_bytes_s() / spec.token_bytes if kv.swap else 0.0)
    scheduler = Scheduler(
        kv,
        clock,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=max_model_len,
        max_preemptions=max_preemptions,
        vocab=model.vocab,
        eos_token_ids=model.eos_token_ids,
        seed=config.seed,
        recorder=recorder,
        preemption=preemption,
        look_ahead=grows,
    )
    preempts = "" if not grows else f", at most {max_preemptions} preemptions a request, by {preemption.mode}"
    effective = {
        "model": f"{config.model} ({model.architecture}, {model.layers} layers, context {model.context})",
        **runner.describe(),
        **({"native runner": f"not used: {choice.why}"} if choice.why else {}),
        **kv.describe(),
        "max_model_len": f"{max_model_len}",
        "batch": f"{config.max_num_seqs} sequences, {config.max_num_batched_tokens} tokens a step",
        "scheduling": f"chunked prefill mixed with decode, {'' if config.async_scheduling else 'not '}overlapped{preempts}",
        **({"record": config.record} if config.record else {}),
        **({"profile": f"{config.profile} steps, {profile_path(config.record)}"} if config.record and config.profile else {}),
    }
    return EngineCore(scheduler, kv, runner, clock, effective, config.async_scheduling)


def longest_request(config: EngineConfig, checkpoint: Checkpoint) -> int:
    """The max_model_len that ``build_engine`` would come to, without building anything. Raises ConfigError as it would."""
    return _max_model_len(config, checkpoint.config, _kv_memory(config), kv_spec(config, checkpoint))


def kv_spec(config: EngineConfig, checkpoint: Checkpoint) -> KVSpec:
    """The shape of a token's keys and values in the engine that ``build_engine`` would make. Raises ConfigError as it would."""
    model = checkpoint.config
    return KVSpec(model.layers, model.kv_heads, model.head_dim, choose_runner(config, build_program(model)).kv_dtype)


def build_kv(config: EngineConfig, checkpoint: Checkpoint, make_arena: Callable[[KVSpec, int], Arena] = Arena) -> KVCache:
    """The KV cache that ``build_engine`` would make, alone. Raises ConfigError as it would.

    make_arena: ``UnbackedArena`` to place sequences without memory for them.
    """
    spec, memory = kv_spec(config, checkpoint), _kv_memory(config)
    return _build_cache(config, spec, memory, _max_model_len(config, checkpoint.config, memory, spec), make_arena)


def build_runner(config: EngineConfig, choice: Choice, program: Program, checkpoint: Checkpoint, max_model_len: int) -> Runner:
    """The runner that was chosen, with the model's weights. max_model_len: as ``longest_request`` gives it."""
    threads = config.threads or len(machine.allowed_cpus())
    if choice.name == "native":
        from octavo.native.weights import KEPT
        from octavo.runner.native_runner import NativeRunner

        if config.quantized_matmul is not None and not checkpoint.weight_kinds().keys() & set(KEPT):
            raise ConfigError(
                f"quantized_matmul is {config.quantized_matmul}, but {config.model} has no weights of type {', '.join(KEPT)}: "
                "leave it out."
            )

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
            widen=(config.quantized_matmul or checkpoint.quantized_matmul) == "bfloat16",
        )
    from octavo.runner.torch_runner import TorchRunner  # imports torch: 1.2 s or more, so only once it is needed

    runner = TorchRunner(
        program,
        checkpoint,
        dtype=choice.dtype,
        attention=config.attention,
        threads=threads,
        slots=config.max_num_seqs,
        max_model_len=max_model_len,
        max_batched_tokens=config.max_num_batched_tokens,
    )
    if config.profile is None or config.record is None:
        return runner
    from octavo.runner.profiled import ProfiledRunner

    return ProfiledRunner(runner, config.profile, profile_path(config.record))


def _kv_memory(config: EngineConfig) -> int:
    """Bytes for keys and values: the setting, checked against what this process may use, or the default."""
    limit = machine.memory_limit()
    if config.kv_memory is not None and config.kv_memory > limit:
        raise ConfigError(
            f"kv_memory is {format_bytes(config.kv_memory)}: this process may use {format_bytes(limit)} in all, weights included."
        )
    return config.kv_memory or machine.default_kv_memory()


def _swap_space(config: EngineConfig) -> int:
    """Bytes for preempted sequences; 0 where they are computed again."""
    if config.preemption not in ("swap", "auto"):
        return 0
    return config.swap_space or parse_bytes("swap_space", DEFAULT_SWAP_SPACE)


def _max_model_len(config: EngineConfig, model: DecoderConfig, memory: int, spec: KVSpec) -> int:
    """The setting, or the most that both the model's context and the KV memory hold."""
    if config.max_model_len is not None:
        if config.max_model_len > model.context:
            raise ConfigError(
                f"max_model_len is {config.max_model_len}: at most {model.context} is accepted, the context of this model."
            )
        return config.max_model_len
    room, block_size = memory // spec.token_bytes, config.block_size or DEFAULT_BLOCK_SIZE
    least = taken(config.kv_layout, spec, SHORTEST, block_size)
    if room < least:
        raise ConfigError(
            f"kv_memory is {format_bytes(memory)}, which holds {room} tokens of {spec.token_bytes} bytes: a request needs at "
            f"least {least} tokens' worth, {format_bytes(least * spec.token_bytes)}."
        )
    longest = room
    while taken(config.kv_layout, spec, longest, block_size) > room:  # a block or a page's worth of times at most
        longest -= 1
    return min(model.context, longest)


def _build_cache(
    config: EngineConfig,
    spec: KVSpec,
    memory: int,
    max_model_len: int,
    make_arena: Callable[[KVSpec, int], Arena] = Arena,
) -> KVCache:
    block_size = config.block_size or DEFAULT_BLOCK_SIZE
    prefix_caching = config.prefix_caching
    if config.enable_prefix_caching is None:  # on, then, where it can have an effect
        prefix_caching = can_share(config.kv_layout, spec, max_model_len)
    kv = build_cache(
        config.kv_layout,
        spec,
        capacity=memory // spec.token_bytes,
        slots=config.max_num_seqs,
        max_model_len=max_model_len,
        block_size=block_size,
        contiguous_reserve=config.contiguous_reserve or "max-len",
        compaction=config.compaction or "incremental",
        hybrid_threshold=config.hybrid_threshold or DEFAULT_HYBRID_THRESHOLD,
        swap_tokens=_swap_space(config) // spec.token_bytes,
        prefix_caching=prefix_caching,
        make_arena=make_arena,
    )
    if kv.longest < max_model_len:
        needed = taken(config.kv_layout, spec, max_model_len, block_size) * spec.token_bytes
        raise ConfigError(
            f"max_model_len is {max_model_len}, but the KV memory ({format_bytes(memory)}) holds a sequence of at most "
            f"{kv.longest} tokens: lower max_model_len or give {format_bytes(needed)} with kv_memory."
        )
    return kv
