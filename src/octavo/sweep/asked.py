"""Asked: the options of the command line, read and checked."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from octavo.bench.suites import SUITES
from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.kv.factory import BLOCK_SIZES, LAYOUTS
from octavo.sweep import arguments
from octavo.units import parse_bytes

ALL = "all"
MOST = 65536  # sequences at once, as max_num_seqs
MOST_ROUNDS = 1000
ATTENTION: tuple[str, ...] = next(
    field.metadata["choices"] for field in EngineConfig.__dataclass_fields__.values() if field.name == "attention"
)
Item = TypeVar("Item", int, str)


@dataclass(frozen=True, slots=True)
class Asked:
    """What to sweep. settings: the engine's, as far as they were given. kv_memory: bytes. contexts: tokens; empty: no growth.
    repeat: rounds, with ``quick`` the most."""

    suites: tuple[str, ...]
    layouts: tuple[str, ...]
    block_sizes: tuple[int, ...]
    attention: tuple[str, ...]
    concurrency: tuple[int, ...]
    kv_memory: tuple[int, ...]
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    repeat: int
    quick: bool
    settings: dict[str, Any]

    @classmethod
    def of(cls, args: argparse.Namespace, settings: dict[str, Any]) -> Asked:
        """From the parsed command line. Raises ConfigError."""
        quick = args.quick

        def default(quick_one: str, other: str) -> str:
            return quick_one if quick else other

        suites = _names("suites", args.suites or arguments.DEFAULT_SUITES, (*SUITES, ALL))
        contexts = args.contexts or default(arguments.QUICK_CONTEXTS, arguments.DEFAULT_CONTEXTS)
        batches = args.batches or default(arguments.QUICK_BATCHES, arguments.DEFAULT_BATCHES)
        concurrency = args.concurrency or default(arguments.QUICK_CONCURRENCY, arguments.DEFAULT_CONCURRENCY)
        blocks = args.block_sizes or default(arguments.QUICK_BLOCK_SIZES, arguments.DEFAULT_BLOCK_SIZES)
        repeat = arguments.DEFAULT_REPEAT if args.repeat is None else args.repeat
        if not 1 <= repeat <= MOST_ROUNDS:
            raise ConfigError(f"repeat is {repeat}: an integer from 1 to {MOST_ROUNDS} is accepted.")
        without = contexts.strip() == "0"
        if without and args.batches:
            raise ConfigError(
                f"batches is {args.batches} with contexts=0: it takes effect on the growth of the decode step only."
            )
        return cls(
            suites=SUITES if ALL in suites else suites,
            layouts=_names("layouts", args.layouts or arguments.DEFAULT_LAYOUTS, LAYOUTS),
            block_sizes=_sizes(blocks),
            attention=_names("attention", args.attention or arguments.DEFAULT_ATTENTION, ATTENTION),
            concurrency=_numbers("concurrency", concurrency, MOST),
            kv_memory=_list(
                "kv_memory", args.kv_memory or arguments.DEFAULT_KV_MEMORY, lambda text: parse_bytes("kv_memory", text)
            ),
            contexts=() if without else _numbers("contexts", contexts, 2**31 - 1, least=2),
            batches=() if without else _numbers("batches", batches, MOST),
            repeat=repeat,
            quick=quick,
            settings=settings,
        )

    def json(self) -> dict[str, Any]:
        """For the run directory: two sweeps with the same are one."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def _list(name: str, text: str, read: Callable[[str], Item]) -> tuple[Item, ...]:
    """Items between commas; none may be missing or come twice."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ConfigError(f"{name} is {text!r}: values with commas between them are accepted.")
    values = [read(part) for part in parts]
    for value in values:
        if values.count(value) > 1:
            raise ConfigError(f"{name} is {text!r}: every value is accepted once, {value} is there more often.")
    return tuple(values)


def _names(name: str, text: str, accepted: Sequence[str]) -> tuple[str, ...]:
    def read(part: str) -> str:
        if part not in accepted:
            raise ConfigError(f"{name} is {text!r}: {', '.join(accepted)} are accepted, with commas between them.")
        return part

    return _list(name, text, read)


def _numbers(name: str, text: str, most: int, least: int = 1) -> tuple[int, ...]:
    def read(part: str) -> int:
        if not (part.isascii() and part.isdigit() and len(part) < 12 and least <= int(part) <= most):
            raise ConfigError(f"{name} is {text!r}: integers from {least} to {most} are accepted, with commas between them.")
        return int(part)

    return tuple(sorted(_list(name, text, read)))


def _sizes(text: str) -> tuple[int, ...]:
    sizes = _numbers("block_sizes", text, BLOCK_SIZES[-1])
    if odd := [size for size in sizes if size not in BLOCK_SIZES]:
        raise ConfigError(f"block_sizes is {text!r}: powers of two from 1 to 256 are accepted, {odd[0]} is none.")
    return sizes
