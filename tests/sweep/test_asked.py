"""The options of the command line: what they come to, and what is refused."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from octavo.errors import ConfigError
from octavo.sweep.arguments import add_sweep
from octavo.sweep.asked import Asked


def asked(*words: str, settings: dict[str, Any] | None = None) -> Asked:
    parser = argparse.ArgumentParser()
    add_sweep(parser)
    return Asked.of(parser.parse_args(words), settings or {})


def test_the_defaults_are_the_whole_table() -> None:
    found = asked()
    assert found.block_sizes == (1, 2, 4, 8, 16, 32, 64, 128, 256)
    assert found.layouts == ("contiguous", "paged", "hybrid", "virtual")
    assert found.kv_memory == (2**30,)
    assert (found.suites, found.attention, found.concurrency, found.repeat) == (("mixed",), ("fused",), (16,), 3)


def test_quick_takes_less_unless_told_otherwise() -> None:
    assert asked("--quick").block_sizes == (1, 16, 256)
    assert asked("--quick", "--block-sizes", "8,2").block_sizes == (2, 8)
    assert asked("--quick").layouts == asked().layouts
    assert "mixed" in asked("--quick").suites


def test_all_is_every_suite_and_no_contexts_is_no_growth() -> None:
    assert asked("--suites", "all").suites == ("short", "long", "mixed", "bimodal", "shared-prefix")
    found = asked("--contexts", "0")
    assert (found.contexts, found.batches) == ((), ())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--block-sizes", "8,24"), "block_sizes is '8,24': powers of two from 1 to 256 are accepted, 24 is none"),
        (("--block-sizes", "512"), "block_sizes is '512': integers from 1 to 256"),
        (("--block-sizes", "8,,16"), "block_sizes is '8,,16': values with commas between them"),
        (("--block-sizes", "8,16,8"), "every value is accepted once, 8 is there more often"),
        (("--layouts", "paged,flat"), "layouts is 'paged,flat': contiguous, paged, hybrid, virtual are accepted"),
        (("--suites", "mixd"), "suites is 'mixd': short, long, mixed, bimodal, shared-prefix, all are accepted"),
        (("--attention", "flash"), "attention is 'flash': fused, gather, per-request are accepted"),
        (("--concurrency", "0"), "concurrency is '0': integers from 1"),
        (("--kv-memory", "1GiB,much"), 'kv_memory is "much": a number of bytes'),
        (("--contexts", "1"), "contexts is '1': integers from 2"),
        (("--repeat", "0"), "repeat is 0: an integer from 1"),
        (("--contexts", "0", "--batches", "4"), "batches is 4 with contexts=0"),
    ],
)
def test_what_cannot_be_swept_is_refused_in_words(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        asked(*words)
    assert message in str(refused.value)
