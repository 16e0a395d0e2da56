"""StepMetrics: a step's record becomes histograms and counters, each figure under its name."""

from __future__ import annotations

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from octavo.observe.record import StepRecord
from octavo.server.step_metrics import COUNTERS, KV_PARTS, PARTS, StepMetrics

STEP = StepRecord(
    step=1,
    start=10.0,
    submitted=10.25,
    done=10.875,
    end=11.0,
    prefill_tokens=5,
    decode_tokens=2,
    schedule_s=0.125,
    allocate_s=0.0625,
    table_s=0.03125,
    view_s=0.03125,
    launch_s=0.125,
    execute_s=0.25,
    sample_s=0.25,
    commit_s=0.125,
    idle_s=3.0,
    between_s=0.5,
    busy_s=1.0,
    launches=7,
    attention_launches=3,
    table_bytes=96,
)


def text(steps: list[StepRecord], threads: int = 4) -> str:
    registry = CollectorRegistry()
    metrics = StepMetrics("m", registry)
    metrics.threads = threads
    for step in steps:
        metrics.take(msgspec.json.encode(step))
    return generate_latest(registry).decode()


def figure(page: str, name: str, labels: str = 'model_name="m"') -> float:
    (line,) = (line for line in page.splitlines() if line.startswith(f"octavo:{name}{{{labels}}} "))
    return float(line.split()[-1])


def part(page: str, family: str, name: str) -> float:
    return figure(page, family, f'model_name="m",part="{name}"')


def test_parts_add_up_to_the_engine_s_time() -> None:
    page = text([STEP, STEP])
    spent = {name: part(page, "engine_step_seconds_total", name) for name in (*PARTS, "idle")}
    assert spent["prepare"] == 2 * 0.125  # allocate, table and view
    assert sum(spent.values()) == 2 * (1.0 + 3.0 + 0.5)
    assert sum(part(page, "kv_prepare_seconds_total", name) for name in KV_PARTS) == spent["prepare"]


def test_each_step_counts_once_in_every_histogram() -> None:
    page = text([STEP, STEP])
    assert figure(page, "step_seconds_sum") == 2.0
    assert figure(page, "step_seconds_bucket", 'le="1.0",model_name="m"') == 2
    assert figure(page, "step_seconds_bucket", 'le="0.5",model_name="m"') == 0
    assert figure(page, "iteration_tokens_total_sum") == 14
    assert figure(page, "step_launches_sum") == figure(page, "engine_launches_total") == 14
    assert figure(page, "engine_attention_launches_total") == 6
    for name in PARTS:
        assert part(page, "step_part_seconds_count", name) == 2


def test_the_busy_share_is_of_all_threads_and_only_where_it_is_known() -> None:
    unknown = msgspec.structs.replace(STEP, busy_s=None)
    page = text([STEP, unknown])
    assert figure(page, "step_busy_ratio_sum") == 0.25  # 1 worker-second of 4 threads in 1 s
    assert figure(page, "step_busy_ratio_count") == 1
    assert figure(page, "worker_busy_seconds_total") == 1.0
    assert figure(page, "worker_threads") == 4


@pytest.mark.parametrize("name", COUNTERS)
def test_every_counter_is_there_from_the_start(name: str) -> None:
    assert figure(text([]), f"{name}_total") == 0
