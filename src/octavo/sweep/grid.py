"""Grid: the points of a sweep, and the combinations that are none, each with the reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.bench.context import LEAST_CONTEXT
from octavo.bench.suites import REFERENCE_CONTEXT
from octavo.config import DEFAULT_BLOCK_SIZE, EngineConfig, from_mapping
from octavo.engine.build import build_kv, longest_request
from octavo.errors import ConfigError
from octavo.models.checkpoint import Checkpoint
from octavo.sweep.asked import Asked
from octavo.sweep.point import Group, Point, Setup
from octavo.units import format_bytes

WITH_BLOCKS = ("paged", "hybrid")
RESERVES = ("max-len", "request")  # of contiguous, unless the settings name one


@dataclass(frozen=True, slots=True)
class Skipped:
    """A combination that is not run. what: which. reason: a sentence."""

    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class Grid:
    """points: in order. configs: the engine's settings by setup and KV memory; all have one ``max_model_len``, so that all are
    asked the same. skipped: what was asked for and is not run."""

    points: tuple[Point, ...]
    configs: dict[tuple[Setup, int], EngineConfig]
    max_model_len: int
    skipped: tuple[Skipped, ...]

    @property
    def setups(self) -> tuple[Setup, ...]:
        """What is compared, each once, in order."""
        return tuple(dict.fromkeys(point.setup for point in self.points))

    @property
    def groups(self) -> tuple[Group, ...]:
        """What is compared within, each once, in order."""
        return tuple(dict.fromkeys(point.group for point in self.points))

    def config(self, point: Point) -> EngineConfig:
        return self.configs[point.setup, point.group.kv_memory]


def make_grid(asked: Asked, checkpoint: Checkpoint) -> Grid:
    """Raises ConfigError where nothing is left to run, or where a setting takes effect on nothing that is."""
    setups, skipped = _setups(asked)
    _refuse_idle(asked.settings, setups)
    base = _slots(asked)
    configs: dict[tuple[Setup, int], EngineConfig] = {}
    for memory in asked.kv_memory:
        for setup in setups:
            values = {**base, **_settings_of(setup, asked.settings), "kv_memory": memory}
            try:
                config = from_mapping(EngineConfig, values)
                longest_request(config, checkpoint)
            except ConfigError as error:
                skipped.append(Skipped(_name(setup, memory, asked), str(error)))
            else:
                configs[setup, memory] = config
    if not configs:
        raise ConfigError(f"nothing is left to sweep. {skipped[-1].reason}")
    longest = _longest(list(configs.values()), checkpoint)
    for (setup, memory), config in list(configs.items()):
        configs[setup, memory] = config = dataclasses.replace(config, max_model_len=longest)
        try:
            build_kv(config, checkpoint)  # memory that is not written costs nothing
        except ConfigError as error:
            skipped.append(Skipped(_name(setup, memory, asked), str(error)))
            del configs[setup, memory]
    if not configs:
        raise ConfigError(f"nothing is left to sweep. {skipped[-1].reason}")
    # The attention path is outermost: changing it may mean another runner, and loading the model again.
    points = tuple(
        Point(Group(suite, concurrency, memory), setup)
        for attention in asked.attention
        for suite in asked.suites
        for concurrency in asked.concurrency
        for memory in asked.kv_memory
        for setup in setups
        if setup.attention == attention and (setup, memory) in configs
    )
    return Grid(points, configs, longest, tuple(skipped))


def _setups(asked: Asked) -> tuple[list[Setup], list[Skipped]]:
    setups: list[Setup] = []
    given = asked.settings.get("contiguous_reserve")
    for attention in asked.attention:
        for layout in asked.layouts:
            if layout == "contiguous":
                setups += [Setup(layout, reserve, None, attention) for reserve in ([given] if given else RESERVES)]
            elif layout in WITH_BLOCKS:
                setups += [Setup(layout, None, size, attention) for size in _block_sizes(layout, asked)]
            else:
                setups.append(Setup(layout, None, None, attention))
    whole = [layout for layout in asked.layouts if layout not in WITH_BLOCKS]
    skipped = []
    if "hybrid" in asked.layouts and (left := set(asked.block_sizes) - set(_block_sizes("hybrid", asked))):
        sizes = ", ".join(map(str, sorted(left)))
        skipped.append(Skipped(f"hybrid {sizes}", f"quick measures hybrid with block size {DEFAULT_BLOCK_SIZE} alone."))
    if whole and len(asked.block_sizes) > 1:
        names = " and ".join(whole)
        have = "have" if len(whole) > 1 else "has"
        skipped.append(
            Skipped(
                f"{names} with each of {len(asked.block_sizes)} block sizes",
                f"{names} {have} no blocks: measured once, not once for each block size.",
            )
        )
    return setups, skipped


def _block_sizes(layout: str, asked: Asked) -> tuple[int, ...]:
    """All that were asked for; with --quick, hybrid with the default one alone, if it is among them: it takes as long as paged to
    measure, and is paged but for its runs."""
    alone = asked.quick and layout == "hybrid" and "paged" in asked.layouts and DEFAULT_BLOCK_SIZE in asked.block_sizes
    return (DEFAULT_BLOCK_SIZE,) if alone else asked.block_sizes


def _takes(setup: Setup, name: str) -> bool:
    """Whether an engine setting has a meaning for this setup. Those that depend on nothing swept have one for all."""
    grows = setup.layout != "contiguous" or setup.reserve == "grow"
    return {
        "contiguous_reserve": setup.layout == "contiguous",
        "compaction": setup.layout == "contiguous" and setup.reserve != "max-len",
        "hybrid_threshold": setup.layout == "hybrid",
        "max_preemptions": grows,
        "preemption": grows,
        "swap_space": grows,
    }.get(name, True)


def _settings_of(setup: Setup, given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if _takes(setup, name)} | setup.settings


def _refuse_idle(given: dict[str, Any], setups: Sequence[Setup]) -> None:
    for name, value in given.items():
        if not any(_takes(setup, name) for setup in setups):
            raise ConfigError(f"{name} is {value}, but no layout that is swept can use it: leave it out, or add one that does.")


def _slots(asked: Asked) -> dict[str, Any]:
    """Room for all that is sent at once, and for the largest batch; the default where that is enough."""
    most = max((*asked.concurrency, *asked.batches))
    default = EngineConfig()
    values: dict[str, Any] = {"max_num_seqs": max(default.max_num_seqs, most)}
    values["max_num_batched_tokens"] = max(default.max_num_batched_tokens, values["max_num_seqs"])
    return values


def _longest(configs: Sequence[EngineConfig], checkpoint: Checkpoint) -> int:
    """The max_model_len of all: what was set, or what the suites are made for as far as model and memory allow."""
    longest = min(longest_request(config, checkpoint) for config in configs)
    if configs[0].max_model_len is None:
        longest = min(longest, REFERENCE_CONTEXT)
    if longest < LEAST_CONTEXT:
        least = format_bytes(min(config.kv_memory or 0 for config in configs))
        raise ConfigError(
            f"max_model_len comes to {longest} with the smallest kv_memory of {least}: a suite needs at least {LEAST_CONTEXT}."
        )
    return longest


def _name(setup: Setup, memory: int, asked: Asked) -> str:
    return setup.title + (f" with {format_bytes(memory)}" if len(asked.kv_memory) > 1 else "")
