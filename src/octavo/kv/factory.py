"""build_cache: a KVCache from settings, or a ConfigError that says which of them does not work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from octavo.errors import ConfigError
from octavo.kv.arena import Arena, KVSpec
from octavo.kv.cache import KVCache
from octavo.kv.compaction import COMPACTIONS, SLICE_BYTES
from octavo.kv.contiguous import HASH_UNIT, RESERVES, Contiguous
from octavo.kv.hybrid import Hybrid
from octavo.kv.layout import Layout
from octavo.kv.mapping import MappedArena
from octavo.kv.paged import Paged
from octavo.kv.pages import NoPages, Pages, PageShape
from octavo.kv.prefix import PrefixIndex
from octavo.kv.run_index import RunIndex
from octavo.kv.swap import SwapSpace
from octavo.kv.virtual import Virtual

LAYOUTS = ("contiguous", "paged", "hybrid", "virtual")
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
    compaction: str = "incremental",
    compaction_slice: int = SLICE_BYTES,
    hash_unit: int = HASH_UNIT,
    hybrid_threshold: int = 512,
    prefix_caching: bool,
    swap_tokens: int = 0,
    make_arena: Callable[[KVSpec, int], Arena] = Arena,
) -> KVCache:
    """The KV cache for these settings; names are those of ``EngineConfig`` where it has them.

    capacity: tokens that the KV memory holds. It need not be a multiple of anything: what no block or run can use is reported as
    ``wasted_outside``.
    slots: most sequences at once.
    block_size is read by paged and hybrid, contiguous_reserve and compaction by contiguous (compaction not with reserve
    max-len), hybrid_threshold by hybrid; ``EngineConfig`` refuses them with other layouts.
    compaction_slice: bytes that an incremental compaction copies before one step. hash_unit: tokens that contiguous hashes
    together for prefix caching; other layouts hash what they share.
    swap_tokens: beyond ``capacity``, for what preempted sequences leave behind; 0: they leave nothing. Not with virtual.
    make_arena: ``UnbackedArena`` for a simulation. Raises ConfigError.
    """
    for name, value in (("slots", slots), ("max_model_len", max_model_len)):
        if value < 1:
            raise ConfigError(f"{name} is {value}: at least 1 is accepted.")
    if capacity + swap_tokens > MOST_TOKENS:
        raise ConfigError(
            f"the KV memory{', swap_space included,' if swap_tokens else ''} holds {capacity + swap_tokens} tokens: at most "
            f"{MOST_TOKENS} can be addressed; lower kv_memory to {MOST_TOKENS * spec.token_bytes} bytes or less."
        )
    if kv_layout == "virtual":
        if swap_tokens:
            raise ConfigError("preemption is by swap with kv_layout=virtual: not supported yet; use recompute, or paged.")
        return _virtual(spec, capacity, slots, max_model_len, prefix_caching, make_arena)
    layout = _layout(
        kv_layout,
        block_size,
        capacity,
        slots,
        max_model_len,
        spec,
        contiguous_reserve,
        compaction,
        compaction_slice // spec.token_bytes,
        hash_unit,
        hybrid_threshold,
    )
    swap = SwapSpace(capacity, swap_tokens) if swap_tokens else None
    return KVCache(layout, make_arena(spec, capacity + swap_tokens), _index(layout) if prefix_caching else None, swap)


def taken(kv_layout: str, spec: KVSpec, tokens: int, block_size: int) -> int:
    """KV memory, in tokens, that a sequence of so many takes where it reserves nothing ahead: whole blocks, or whole pages."""
    if kv_layout == "contiguous":
        return tokens
    if kv_layout == "virtual":
        shape = PageShape.of(spec, 0, 1, 1)
        return -(-shape.rows(tokens) * shape.page // spec.row_bytes)
    return -(-tokens // block_size) * block_size


def can_share(kv_layout: str, spec: KVSpec, max_model_len: int) -> bool:
    """Whether prefix caching can have an effect with this layout."""
    return kv_layout != "virtual" or PageShape.of(spec, 0, 1, max_model_len).unit <= max_model_len


def _virtual(
    spec: KVSpec,
    capacity: int,
    slots: int,
    max_model_len: int,
    prefix_caching: bool,
    make_arena: Callable[[KVSpec, int], Arena],
) -> KVCache:
    shape = PageShape.of(spec, capacity, slots, max_model_len)
    _hold(capacity, -(-shape.rows(1) * shape.page // spec.row_bytes), f"one token in pages of {shape.page} bytes", spec)
    if shape.tokens > MOST_TOKENS:
        raise ConfigError(
            f"max_num_seqs is {slots}: kv_layout=virtual has {shape.stride} token indices for each sequence, and at most "
            f"{MOST_TOKENS} can be addressed; lower max_num_seqs or max_model_len."
        )
    if prefix_caching and not can_share("virtual", spec, max_model_len):
        wider = PageShape.of(replace(spec, dtype="bfloat16"), 0, 1, 1).unit
        instead = f", use kv_cache_dtype=bfloat16 (no fewer than {wider} tokens)" if wider <= max_model_len else ""
        raise ConfigError(
            f"enable_prefix_caching is on with kv_layout=virtual: whole pages of {shape.page} bytes hold no fewer than "
            f"{shape.unit} tokens of {spec.row_bytes} bytes ({spec.dtype}), so no shorter prefix can be shared, and "
            f"max_model_len is {max_model_len}. Turn it off{instead} or use paged."
        )
    arena: Arena
    pages: Pages
    if make_arena is Arena:
        arena = pages = MappedArena(spec, shape)
    else:
        arena, pages = make_arena(spec, shape.tokens), NoPages()
    layout = Virtual(shape, capacity, max_model_len, pages)
    return KVCache(layout, arena, PrefixIndex(shape.unit) if prefix_caching else None)


def _index(layout: Layout) -> PrefixIndex:
    return RunIndex(layout.unit, layout.held) if isinstance(layout, Contiguous) else PrefixIndex(layout.block_size)


def _layout(
    name: str,
    block_size: int,
    capacity: int,
    slots: int,
    max_model_len: int,
    spec: KVSpec,
    reserve: str,
    compaction: str,
    slice_tokens: int,
    hash_unit: int,
    threshold: int,
) -> Layout:
    if name == "contiguous":
        if reserve not in RESERVES:
            raise ConfigError(f"contiguous_reserve is {reserve!r}: max-len, request or grow is accepted.")
        if compaction not in COMPACTIONS:
            raise ConfigError(f"compaction is {compaction!r}: pause or incremental is accepted.")
        if reserve == "max-len":
            _hold(capacity, max_model_len, f"one run of max_model_len={max_model_len} tokens", spec)
            return Contiguous(capacity, slots, max_model_len, reserve, hash_unit)
        _hold(capacity, 1, "one token", spec)
        return Contiguous(capacity, slots, max_model_len, reserve, hash_unit, compaction, slice_tokens)
    if name not in LAYOUTS:
        raise ConfigError(f"kv_layout is {name!r}: contiguous, paged, hybrid or virtual is accepted.")
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
