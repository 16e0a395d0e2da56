"""build_cache: a KVCache from settings, or a ConfigError that says which of them does not work."""

from __future__ import annotations

from collections.abc import Callable

from octavo.errors import ConfigError
from octavo.kv.arena import Arena, KVSpec
from octavo.kv.cache import KVCache
from octavo.kv.contiguous import RESERVES, Contiguous
from octavo.kv.hybrid import Hybrid
from octavo.kv.layout import Layout
from octavo.kv.paged import Paged
from octavo.kv.prefix import PrefixIndex

LAYOUTS = ("contiguous", "paged", "hybrid")
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MOST_TOKENS = 2**31 - 1  # token indices are int32


def build_cache(
    kv_layout: str,
    spec: KVSpec,
    *,
    capacity: int,
    slots: int,
    max_model_len: int,
    block_size: int,
    contiguous_reserve: str = "max-len",
    hybrid_threshold: int = 512,
    prefix_caching: bool,
    make_arena: Callable[[KVSpec, int], Arena] = Arena,
) -> KVCache:
    """The KV cache for these settings; names are those of ``EngineConfig`` where it has them.

    capacity: tokens that the KV memory holds. It need not be a multiple of anything: what no block or run can use is reported as
    ``wasted_outside``.
    slots: most sequences at once.
    block_size is read by paged and hybrid, contiguous_reserve by contiguous, hybrid_threshold by hybrid; ``EngineConfig`` refuses
    them with other layouts.
    make_arena: ``UnbackedArena`` for a simulation. Raises ConfigError.
    """
    for name, value in (("slots", slots), ("max_model_len", max_model_len)):
        if value < 1:
            raise ConfigError(f"{name} is {value}: at least 1 is accepted.")
    if capacity > MOST_TOKENS:
        raise ConfigError(
            f"the KV memory holds {capacity} tokens: at most {MOST_TOKENS} can be addressed; lower kv_memory to "
            f"{MOST_TOKENS * spec.token_bytes} bytes or less."
        )
    layout = _layout(kv_layout, block_size, capacity, slots, max_model_len, spec, contiguous_reserve, hybrid_threshold)
    prefix = PrefixIndex(layout.block_size) if prefix_caching else None
    return KVCache(layout, make_arena(spec, capacity), prefix)


def _layout(
    name: str,
    block_size: int,
    capacity: int,
    slots: int,
    max_model_len: int,
    spec: KVSpec,
    reserve: str,
    threshold: int,
) -> Layout:
    if name == "contiguous":
        if reserve not in RESERVES:
            raise ConfigError(f"contiguous_reserve is {reserve!r}: max-len or request is accepted.")
        if reserve == "max-len":
            _hold(capacity, max_model_len, f"one run of max_model_len={max_model_len} tokens", spec)
        else:
            _hold(capacity, 1, "one token", spec)
        return Contiguous(capacity, slots, max_model_len, reserve)
    if name not in LAYOUTS:
        raise ConfigError(f"kv_layout is {name!r}: contiguous, paged or hybrid is accepted.")
    if block_size not in BLOCK_SIZES:
        raise ConfigError(f"block_size is {block_size}: a power of two from 1 to 256 is accepted.")
    _hold(capacity, block_size, f"one block of block_size={block_size} tokens", spec)
    if name == "paged":
        return Paged(capacity, slots, max_model_len, block_size)
    if threshold < 1:
        raise ConfigError(f"hybrid_threshold is {threshold}: at least 1 token is accepted.")
    return Hybrid(capacity, slots, max_model_len, block_size, threshold)


def _hold(capacity: int, tokens: int, what: str, spec: KVSpec) -> None:
    if capacity < tokens:
        raise ConfigError(
            f"the KV memory holds {capacity} tokens of {spec.token_bytes} bytes, less than {what}: raise kv_memory to at least "
            f"{tokens * spec.token_bytes} bytes."
        )
