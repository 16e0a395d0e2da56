"""Suites, cutting, sharing, and what is printed of a workload."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench import context
from octavo.bench.lengths import CODE_OUTPUT, CODE_PROMPT, CONVERSATION_OUTPUT, CONVERSATION_PROMPT, LEVELS, Lengths
from octavo.bench.print_workload import print_workload, workload_json
from octavo.bench.sharing import shared_tokens
from octavo.bench.suites import DOCUMENT_TOKENS, SUITES, SYSTEM_PROMPT_TOKENS, suite
from octavo.bench.workload import BenchRequest, Segment, Workload
from octavo.errors import WorkloadError

AZURE = [CONVERSATION_PROMPT, CONVERSATION_OUTPUT, CODE_PROMPT, CODE_OUTPUT]


def request(index: int, *segments: tuple[int, int], output: int = 1) -> BenchRequest:
    return BenchRequest(index, tuple(Segment(key, tokens) for key, tokens in segments), output)


# ---- lengths


@pytest.mark.parametrize("lengths", AZURE)
def test_a_fitted_table_has_a_value_for_each_level_and_never_falls(lengths: Lengths) -> None:
    assert len(lengths.values) == len(LEVELS)
    assert list(lengths.values) == sorted(lengths.values)
    assert [lengths.at(level) for level in LEVELS] == list(lengths.values)


def test_between_two_quantiles_the_logarithm_is_linear() -> None:
    lengths = Lengths((1, 100, *[100] * (len(LEVELS) - 2)))
    assert lengths.at(LEVELS[1] / 2) == 10  # halfway from 1 to 100
    assert lengths.between(0, LEVELS[1] / 2).at(1) == 10
    assert lengths.between(LEVELS[1], 1).at(0) == 100


# ---- suites


@pytest.mark.parametrize("name", SUITES)
@given(count=st.integers(1, 70), seed=st.integers(0, 2**32), context_length=st.integers(16, 20_000))
def test_every_suite_fits_the_context_whatever_it_is(name: str, count: int, seed: int, context_length: int) -> None:
    workload = suite(name, requests=count, max_model_len=context_length, seed=seed)
    assert [request.index for request in workload.requests] == list(range(count))
    assert all(request.prompt_tokens + request.output_tokens <= context_length for request in workload.requests)
    assert all(request.arrival_s is None for request in workload.requests)


@pytest.mark.parametrize("name", SUITES)
def test_the_same_seed_gives_the_same_requests_and_another_seed_others(name: str) -> None:
    assert suite(name, max_model_len=8192, seed=3) == suite(name, max_model_len=8192, seed=3)
    assert suite(name, max_model_len=8192, seed=3).requests != suite(name, max_model_len=8192, seed=4).requests


def test_the_draws_of_a_seed_are_fixed_for_good() -> None:
    lengths = [(one.prompt_tokens, one.output_tokens) for one in suite("mixed", max_model_len=8192, requests=4, seed=0).requests]
    assert lengths == [(1068, 124), (4078, 181), (393, 432), (404, 66)]


def test_mixed_has_the_mean_of_the_trace_with_few_requests_and_with_many() -> None:
    for count in (32, 1000):
        prompts = [one.prompt_tokens for one in suite("mixed", requests=count, max_model_len=8192).requests]
        assert sum(prompts) / count == pytest.approx(1155, rel=0.05)


def test_short_is_short_and_long_is_long() -> None:
    assert max(one.prompt_tokens for one in suite("short", max_model_len=8192).requests) <= 396  # the lower quartile
    assert min(one.prompt_tokens for one in suite("long", max_model_len=8192).requests) >= 1469  # the median


def test_one_in_sixteen_of_bimodal_is_very_long() -> None:
    workload = suite("bimodal", requests=160, max_model_len=8192)
    long = [one.index for one in workload.requests if one.prompt_tokens > 1000]
    assert [index // 16 for index in long] == list(range(10))
    assert min(workload.requests[index].prompt_tokens for index in long) >= 5188


def test_shared_prefix_shares_one_system_prompt_and_one_document() -> None:
    workload = suite("shared-prefix", requests=10, max_model_len=8192)
    first = [one.segments[0] for one in workload.requests]
    assert sorted(segment.tokens for segment in first) == [SYSTEM_PROMPT_TOKENS] * 5 + [DOCUMENT_TOKENS] * 5
    assert len({segment.key for segment in first}) == 2
    assert len({one.segments[1].key for one in workload.requests}) == 10
    assert sum(shared_tokens(workload.requests)) == 4 * SYSTEM_PROMPT_TOKENS + 4 * DOCUMENT_TOKENS


def test_on_a_smaller_context_all_lengths_shrink_in_proportion_and_a_note_says_so() -> None:
    whole, half = (suite("short", max_model_len=size) for size in (8192, 4096))
    assert [one.prompt_tokens for one in half.requests] == [round(one.prompt_tokens / 2) for one in whole.requests]
    assert not whole.notes
    assert "0.5" in half.notes[0]


def test_a_larger_context_changes_nothing() -> None:
    assert suite("long", max_model_len=131072).requests == suite("long", max_model_len=8192).requests


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"name": "medium", "max_model_len": 8192}, "short, long, mixed, bimodal, shared-prefix"),
        ({"name": "short", "max_model_len": 8192, "requests": 0}, "requests is 0"),
        ({"name": "short", "max_model_len": 15}, "max_model_len is 15"),
    ],
)
def test_what_cannot_be_made_is_refused_by_name(arguments: dict[str, object], named: str) -> None:
    with pytest.raises(WorkloadError, match=named):
        suite(**arguments)  # type: ignore[arg-type]


# ---- cutting


def test_a_prompt_is_cut_from_its_end() -> None:
    segments, output = context.cut((Segment(7, 50), Segment(8, 60)), 20, most=100)
    assert segments == (Segment(7, 50), Segment(8, 30))
    assert output == 20


def test_an_output_keeps_half_of_the_room_or_what_the_prompt_leaves() -> None:
    assert context.cut((Segment(0, 90),), 90, most=100) == ((Segment(0, 50),), 50)
    assert context.cut((Segment(0, 10),), 900, most=100) == ((Segment(0, 10),), 90)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=5), st.integers(1, 500), st.integers(2, 300))
def test_what_is_cut_fits_and_nothing_is_cut_to_nothing(parts: list[int], output: int, most: int) -> None:
    segments, kept = context.cut([Segment(i, tokens) for i, tokens in enumerate(parts)], output, most)
    assert segments
    assert 1 <= kept <= output
    total = sum(segment.tokens for segment in segments) + kept
    assert total == min(most, sum(parts) + output)


# ---- sharing


def test_shared_tokens_counts_what_an_earlier_prompt_begins_with() -> None:
    requests = [
        request(0, (1, 100), (2, 50)),
        request(1, (1, 100), (3, 50)),  # the first segment
        request(2, (1, 60), (2, 50)),  # part of it; behind the cut nothing is the same
        request(3, (1, 100), (2, 70)),  # both, the second as far as it was seen
        request(4, (2, 50)),  # was never at the beginning
        request(5, (1, 60), (2, 50), (9, 5)),  # all of request 2
    ]
    assert shared_tokens(requests) == [0, 100, 60, 150, 0, 110]


@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=1, max_size=4), max_size=12))
def test_shared_tokens_agrees_with_comparing_every_pair(prompts: list[list[tuple[int, int]]]) -> None:
    def content(prompt: list[tuple[int, int]]) -> list[tuple[int, int]]:
        return [(key, i) for key, tokens in prompt for i in range(tokens)]

    def common(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> int:
        return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))

    contents = [content(prompt) for prompt in prompts]
    expected = [max((common(mine, before) for before in contents[:i]), default=0) for i, mine in enumerate(contents)]
    assert shared_tokens(request(i, *prompt) for i, prompt in enumerate(prompts)) == expected


# ---- printing


def printed(workload: Workload, everything: bool = False) -> list[str]:
    out = io.StringIO()
    print_workload(workload, everything=everything, file=out)
    return out.getvalue().splitlines()


def test_a_small_workload_is_printed_whole_and_of_a_large_one_the_ends() -> None:
    rows = [line for line in printed(suite("short", max_model_len=8192, requests=25)) if line.lstrip()[:1].isdigit()]
    assert len(rows) == 25
    large = suite("short", max_model_len=8192, requests=100)
    assert any("75 more" in line for line in printed(large))
    assert len(printed(large, everything=True)) == len(printed(large)) + 74


def test_the_summary_says_lengths_sharing_and_arrivals() -> None:
    requests = tuple(
        BenchRequest(i, (Segment(0, 60), Segment(1 + i, 40)), output_tokens=10 * (i + 1), arrival_s=float(i)) for i in range(4)
    )
    workload = Workload("trace.csv", requests, 0, "The source.", ("A note.",))
    lines = printed(workload)
    assert lines[:3] == ["trace.csv: 4 requests, seed 0", "The source.", "A note."]
    table = {line[:14].strip(): line[14:].split() for line in lines if line.startswith(("prompt tokens", "output tokens"))}
    assert table["prompt tokens"] == ["100", "100", "100", "100", "100", "400"]
    assert table["output tokens"] == ["25", "25", "37", "40", "40", "100"]
    assert "shared: 45.0% of the prompt tokens begin an earlier prompt, too" in lines  # 3 x 60 of 400
    assert any("over 3.0 s, 1 requests/s" in line and "variation of 0.00" in line for line in lines)


def test_the_json_form_holds_every_request_and_is_json() -> None:
    workload = suite("shared-prefix", max_model_len=8192, requests=40)
    data = json.loads(json.dumps(workload_json(workload)))
    assert len(data["requests"]) == 40
    assert data["requests"][7]["prompt_tokens"] == workload.requests[7].prompt_tokens
    assert sum(tokens for _, tokens in data["requests"][7]["segments"]) == workload.requests[7].prompt_tokens
    assert data["summary"]["shared_prompt_tokens"] == sum(shared_tokens(workload.requests))


def test_a_workload_without_requests_can_be_printed() -> None:
    assert printed(Workload("empty", (), 0, "Nothing."))[0] == "empty: 0 requests, seed 0"
