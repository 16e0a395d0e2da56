"""What runners tell of a step beside its tokens: bytes of keys and values, launches of attention, time, against hand counts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from octavo.kv.arena import KVSpec
from octavo.models.decoder import build_program
from octavo.native import isa
from octavo.runner.base import Runner, StepResult
from octavo.runner.torch_runner import TorchRunner
from octavo.scheduler.plan import Logits, Row, StepPlan
from tests.placement import make_view
from tests.runner.numpy_decoder import RandomCheckpoint
from tests.runner.test_other_decoders import BASE

WINDOWED = dataclasses.replace(BASE, windows=(5, None))
CHECKPOINT = RandomCheckpoint(WINDOWED)
for _name, _array in CHECKPOINT.weights.items():
    if _array.ndim == 2:
        CHECKPOINT.weights[_name] = (_array.view(np.uint32) & 0xFFFF0000).view(np.float32)  # a bfloat16
PROGRAM = build_program(WINDOWED)
THREADS = 2
needs_native = pytest.mark.skipif(not isa.built(), reason="the native library is not compiled")


def torch_runner(attention: str) -> Runner:
    return TorchRunner(
        PROGRAM, CHECKPOINT, dtype="float32", attention=attention, threads=1, slots=4, max_model_len=130, max_batched_tokens=256
    )  # fmt: skip


def native_runner(kv_dtype: str = "bfloat16", eager: bool = False, attention: str = "fused") -> Runner:
    from octavo.runner.native_runner import NativeRunner

    return NativeRunner(
        PROGRAM, CHECKPOINT, dtype="bfloat16", attention=attention, threads=THREADS, slots=4, max_model_len=130,
        max_batched_tokens=256, kv_dtype=kv_dtype, eager=eager,
    )  # fmt: skip


def steps(runner: Runner, dtype: str) -> tuple[list[StepResult], KVSpec]:
    """A prefill of 100 and 3 tokens; then a chunk of 10 behind the 100, and one token behind the 3."""
    spec = KVSpec(WINDOWED.layers, WINDOWED.kv_heads, WINDOWED.head_dim, dtype)
    view = make_view(spec, 4, 130, 8)

    def row(slot: int, start: int, length: int) -> Row:
        return Row(slot, start, length, [7] * length, Logits.LAST)

    plans = [StepPlan(1, (row(0, 0, 100), row(1, 0, 3))), StepPlan(2, (row(0, 100, 10), row(1, 3, 1)))]
    return [runner.execute(plan, view) for plan in plans], spec


# Layer 0 sees 5 tokens back, layer 1 everything. First step: all 100 and 3 in both. Second: 10 queries see from position 96 on,
# one sees all of 4; then everything.
TOKENS = [2 * 103, (14 + 4) + (110 + 4)]


@pytest.mark.parametrize(
    ("runner", "dtype"),
    [
        *(pytest.param(lambda path=path: torch_runner(path), "float32", id=path) for path in ("fused", "gather", "per-request")),
        pytest.param(lambda: native_runner("int8"), "int8", id="native int8", marks=needs_native),
        *(
            pytest.param(
                lambda eager=eager, path=path: native_runner(eager=eager, attention=path),
                "bfloat16",
                id=f"native {path} {eager=}",
                marks=needs_native,
            )
            for eager in (False, True)
            for path in ("fused", "per-request")
        ),
    ],
)
def test_bytes_read_are_the_keys_and_values_that_some_query_sees(runner, dtype: str) -> None:
    results, spec = steps(runner(), dtype)
    assert [result.kv_read_bytes for result in results] == [tokens * 2 * spec.row_bytes for tokens in TOKENS]
    for result in results:
        assert 0 < result.attention_s < result.execute_s
        assert result.gather_s < result.attention_s


@needs_native
def test_busy_time_is_at_most_all_threads_all_the_time() -> None:
    for result in steps(native_runner(), "bfloat16")[0]:
        assert result.busy_s is not None
        assert 0 < result.busy_s <= THREADS * (result.execute_s + result.sample_s)


@needs_native
def test_attention_is_a_launch_of_its_own_only_where_operations_are() -> None:
    for result in steps(native_runner(), "bfloat16")[0]:
        assert (result.launches, result.attention_launches) == (1, 0)
    for result in steps(native_runner(eager=True), "bfloat16")[0]:
        assert result.attention_launches == WINDOWED.layers
        assert result.launches > 5 * result.attention_launches


@needs_native
def test_native_attention_per_request_is_a_call_for_each_row_and_layer() -> None:
    """Two rows. Without eager, what lies before, between and behind the attentions of the layers is a call each."""
    apart, fused = (steps(native_runner(eager=True, attention=path), "bfloat16")[0] for path in ("per-request", "fused"))
    for result, other in zip(apart, fused, strict=True):
        assert result.attention_launches == 2 * WINDOWED.layers
        assert result.launches - result.attention_launches == other.launches - other.attention_launches
    for result in steps(native_runner(attention="per-request"), "bfloat16")[0]:
        assert result.attention_launches == 2 * WINDOWED.layers
        assert result.launches == 2 * WINDOWED.layers + WINDOWED.layers + 1


def test_per_request_attention_is_launched_for_each_sequence() -> None:
    """Three sequences of one length: together a group, or each by itself; the rest of the step is the same."""
    found = []
    for path in ("fused", "per-request"):
        view = make_view(KVSpec(WINDOWED.layers, WINDOWED.kv_heads, WINDOWED.head_dim, "float32"), 4, 130, 8)
        view.arena.array()[:] = 0
        found.append(torch_runner(path).execute(StepPlan(1, tuple(Row(s, 20, 1, [7], Logits.LAST) for s in range(3))), view))
    together, apart = found
    assert apart.attention_launches == 3 * together.attention_launches
    assert apart.launches - apart.attention_launches == together.launches - together.attention_launches


def test_what_is_gathered_includes_padding() -> None:
    (_, second), spec = steps(torch_runner("gather"), "float32")
    # The token by itself, and the chunk by itself: rows of one token are never grouped with others.
    assert second.gather_bytes == 2 * spec.row_bytes * sum(TOKENS[1:])
    two = StepPlan(3, (Row(0, 110, 1, [7], Logits.LAST), Row(1, 4, 1, [7], Logits.LAST)))
    runner, view = torch_runner("gather"), make_view(spec, 4, 130, 8)
    view.arena.array()[:] = 0
    padded = runner.execute(two, view)
    assert padded.gather_bytes == 2 * spec.row_bytes * (2 * 5 + 2 * 111)  # both as long as the longer
    assert padded.kv_read_bytes == 2 * spec.row_bytes * (2 * 5 + 111 + 5)
