"""All configurations on a tiny model: what they compute, how often they call, what they reserve."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.errors import ConfigError
from octavo.kv.arena import Arena, KVSpec
from octavo.ladder.causes import CAUSES, INDIRECTION, SLOW, Arm, arm, subsets
from octavo.ladder.experiment import Laboratory, Load
from octavo.ladder.filled import Contents
from octavo.ladder.rounds import Rounds, measure_rounds, planned
from octavo.models.load import open_checkpoint
from octavo.native import isa
from tests.checkpoints import tiny_llama

needs_native = pytest.mark.skipif(not isa.built(), reason="the native library is not compiled")
LAYERS = 2
LOAD = Load(batch=3, context=40, steps=6, every=3)
# The tiny Llama, by native/program.py: the embedding; norm, query-key-value, rotation, attention, output, norm, gate-up and down
# in each layer; two selections of rows (attention's result and the residual stream) after the last attention, norm, head, sample.
OPERATIONS = 1 + 8 * LAYERS + 2 + 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_llama(tmp_path_factory.mktemp("ladder"), dtype="bfloat16"))


@pytest.fixture(scope="module")
def rounds(folder: str) -> Rounds:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(isa.VARIABLE, "baseline")  # others have operations of their own that prepare rows
        return measure_rounds(Laboratory(folder, open_checkpoint(folder), "native", LOAD, 1), LOAD, 1, None)


def expected_launches(of: Arm) -> tuple[int, int]:
    """Of a step, and of its attention."""
    apart = LAYERS * LOAD.batch
    if of.attention == "fused":
        return (OPERATIONS, LAYERS) if of.eager else (1, 0)
    return (OPERATIONS - LAYERS + apart if of.eager else LAYERS + 1 + apart), apart


def test_the_configurations() -> None:
    arms = [arm(removed) for removed in subsets(CAUSES)]
    assert len(set(arms)) == 32
    assert arms[0] == SLOW == Arm("paged", "per-request", True, 8, True, False)
    assert arms[-1] == Arm("paged", "fused", False, 16, False, True)
    assert arm([cause.name for cause in CAUSES] + [INDIRECTION]) == Arm("contiguous", "fused", False, 0, False, True)


@needs_native
def test_every_configuration_computes_the_same_tokens(rounds: Rounds) -> None:
    tokens = {rounds.of(removed)[0].tokens for removed in (*rounds.ladder(), rounds.contiguous)}
    assert len(tokens) == 1
    assert rounds.same_tokens
    for sequence in tokens.pop():
        assert len(sequence) == LOAD.growth - 4
    sequences = rounds.of(frozenset())[0].tokens
    assert len(set(sequences)) == LOAD.batch, "each has contents of its own"


@needs_native
@pytest.mark.parametrize("removed", list(subsets(CAUSES)), ids=lambda removed: "-".join(sorted(removed)) or "slow")
def test_launches_of_a_step(rounds: Rounds, removed: frozenset[str]) -> None:
    (measured,) = rounds.of(removed)
    assert (measured.launches, measured.attention_launches) == expected_launches(arm(removed))
    # The second of the steps that count, too, is one for compaction, but no sequence has got a block since the last.
    assert measured.compacted == (False, False, False, False, "block_management" not in removed, False)
    assert len(measured.itl_s) == LOAD.steps
    assert measured.busy is not None
    assert 0 < measured.busy < 1


@needs_native
def test_memory(rounds: Rounds, folder: str) -> None:
    token_bytes = LAYERS * 2 * 2 * 16 * 2
    assert LOAD.contexts == [40, 25, 10]
    # Of the 10 tokens that each got, the last one has no place yet, unless the next step is planned already.
    for removed, size in ((frozenset(), 8), (rounds.best, 16)):
        reserved = rounds.of(removed)[0].kv_bytes / token_bytes
        assert reserved % size == 0
        assert sum(-(-(context + 10 - 1) // size) * size for context in LOAD.contexts) <= reserved
        assert reserved <= sum(-(-(context + 10 + 1) // size) * size for context in LOAD.contexts)
    assert rounds.of(rounds.contiguous)[0].kv_bytes == LOAD.batch * LOAD.longest * token_bytes


def test_contents_follow_a_sequence_wherever_it_lies() -> None:
    spec = KVSpec(2, 1, 4, "float32")
    arena, contents = Arena(spec, 64), Contents(spec)
    there, elsewhere = np.arange(20), np.random.default_rng(0).permutation(64)[:20]
    contents.write(arena, 1, there)
    first = arena.array()[:, :, there].copy()
    contents.write(arena, 1, elsewhere)
    assert np.array_equal(arena.array()[:, :, elsewhere], first)
    contents.write(arena, 2, there)
    assert not np.array_equal(arena.array()[:, :, there], first)
    values = first.view(np.float32)
    assert abs(values.mean()) < 0.3
    assert 0.7 < values.std() < 1.3


def test_what_is_planned() -> None:
    load = Load(batch=8, context=64, steps=4, every=4)
    runs = planned(CAUSES, load)
    assert len(runs) == len(set(runs)) == 33 + 2 * 3
    assert {(of.batch, of.context) for _, of in runs} == {(8, 64), (2, 64), (8, 16), (2, 16)}


def test_rounds_stop_where_another_would_take_too_long(folder: str) -> None:
    class Slow(Laboratory):
        def __init__(self) -> None:
            self.causes = CAUSES
            self.runs = 0

        def measure(self, of, load):  # type: ignore[no-untyped-def]
            self.runs += 1

    laboratory = Slow()
    measure_rounds(laboratory, LOAD, 5, 0.0)
    assert laboratory.runs == len(planned(CAUSES, LOAD))
    measure_rounds(laboratory, LOAD, 2, None)
    assert laboratory.runs == 3 * len(planned(CAUSES, LOAD))


def test_loads_that_cannot_be(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="steps is 5 with compact_every=3: a multiple of that is accepted"):
        Load(batch=3, context=40, steps=5, every=3)
    with pytest.raises(ConfigError, match="batch is 0: an integer from 1 to 65536 is accepted"):
        Load(batch=0, context=40, steps=6, every=3)
    with pytest.raises(ConfigError, match="compact_every is 0: an integer from 1 to 65536 is accepted"):
        Load(batch=1, context=40, steps=6, every=0)
    with pytest.raises(ConfigError, match=r"context is 2000: at most 1010 is accepted, since .* has a context of 1024 tokens"):
        Laboratory(folder, open_checkpoint(folder), "native", Load(3, 2000, 6, 3), 1)
    monkeypatch.setattr("octavo.machine.memory_limit", lambda: 10**6)
    with pytest.raises(
        ConfigError, match=r"batch is 64 and context 1000: their keys and values take (15.84|31.69) MiB, and this process"
    ):
        Laboratory(folder, open_checkpoint(folder), "torch", Load(64, 1000, 6, 3), 1)
