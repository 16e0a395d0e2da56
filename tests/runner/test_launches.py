"""``StepResult.launches`` against the calls that torch's own profiler saw."""

from __future__ import annotations

from collections import Counter

import pytest
from torch.profiler import ProfilerActivity, profile

from octavo.kv.arena import KVSpec
from octavo.models.decoder import build_program
from octavo.models.load import open_checkpoint
from octavo.runner.torch_runner import TorchRunner
from octavo.scheduler.plan import Logits, Row, SlotSampling, StepPlan
from tests.checkpoints import tiny_llama
from tests.placement import CONTIGUOUS, make_view

# Operators that give another view of the same elements, or memory without elements.
NO_LAUNCH = {
    *("aten::view", "aten::reshape", "aten::slice", "aten::select", "aten::transpose", "aten::permute", "aten::expand"),
    *("aten::flatten", "aten::unbind", "aten::unsqueeze", "aten::chunk", "aten::as_strided", "aten::detach", "aten::t"),
    *("aten::view_as_complex", "aten::view_as_real", "aten::empty", "aten::resize_", "aten::lift_fresh", "aten::alias"),
    *("aten::resolve_conj", "aten::resolve_neg"),  # Tensor.numpy asks for them, in vain
}


@pytest.mark.parametrize("attention", ["fused", "gather", "per-request"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("block", [CONTIGUOUS, 16])
def test_every_call_that_computes_is_counted_once(tmp_path, attention, dtype, block):
    checkpoint = open_checkpoint(str(tiny_llama(tmp_path / "model")))
    config = checkpoint.config
    runner = TorchRunner(
        build_program(config),
        checkpoint,
        dtype=dtype,
        attention=attention,
        threads=1,
        slots=8,
        max_model_len=400,
        max_batched_tokens=512,
    )
    view = make_view(KVSpec(config.layers, config.kv_heads, config.head_dim, dtype), 8, 340, block)

    def row(slot, start, length, logits=Logits.LAST):
        return Row(slot, start, length, [10 + i % 200 for i in range(length)], logits)

    ways = [(0.0, 1.0, 0), (1.0, 1.0, 0), (1.0, 0.9, 0), (1.0, 1.0, 5), (0.5, 0.5, 7)]
    opened = tuple(SlotSampling(slot, *way, 1, 0) for slot, way in enumerate(ways))
    plans = [
        StepPlan(0, tuple(row(slot, 0, n) for slot, n in enumerate((300, 40, 33, 7, 1))), opened),
        StepPlan(1, tuple(Row(slot, n, 1, None, Logits.LAST) for slot, n in enumerate((300, 40, 33, 7, 1)))),
        StepPlan(2, (row(0, 301, 20, Logits.NONE), row(1, 41, 1, Logits.ALL), row(5, 0, 20, Logits.ALL))),
    ]
    for plan in plans:
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            result = runner.execute(plan, view)
        calls = [e for e in profiled.events() if e.cpu_parent is None and "::" in e.name and e.name not in NO_LAUNCH]
        seen = [e.name for e in calls if e.name != "aten::to" or e.cpu_children]  # a conversion to the same type does nothing
        assert result.launches == len(seen), sorted(Counter(seen).items())
