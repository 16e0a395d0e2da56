"""Trace readers: each format's own example, damage of every kind, and the real files where they are at hand."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.sharing import shared_tokens
from octavo.bench.traces import FORMATS, read_trace
from octavo.bench.traces.prefix_tree import ROOT, PrefixTree
from octavo.bench.workload import Workload
from octavo.errors import OctavoError, WorkloadError
from octavo.models.load import open_checkpoint

REAL = Path(__file__).parents[3] / "shared" / "traces" / "requests"

AZURE_2023 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:16:46.6805900,879,55
"""
AZURE_2024 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.259930+00:00,2399,6
2024-05-10 00:00:01+00:00,76,15
"""
VIDUR = """\
arrived_at,num_prefill_tokens,num_decode_tokens
0.0,374,44
4.314579,396,109
4.541877,879,55
"""
BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,GPT-4,1087,0,1087,API log
118.5,GPT-4,417,276,693,Conversation log
"""
BURSTGPT_3 = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,1722ac82-0a46-4bf0-aa08-89794e7a2b3f,43,GPT-4,906,446,1352,Conversation log
19440161.0,d5983bf9-4b48-497b-892b-a58995247443,2,ChatGPT,36,29,65,"API log, second"
"""
MOONCAKE = """\
{"timestamp": 0, "input_length": 1300, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 3052, "input_length": 1024, "output_length": 490, "hash_ids": [0, 1]}
{"timestamp": 3500, "input_length": 1100, "output_length": 10, "hash_ids": [0, 7, 8]}
"""
CAPTURE_HEAD = {"octavo_capture": 1}


def sharegpt(*conversations: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    return [
        {"id": f"c{i}", "conversations": [{"from": speaker, "value": text} for speaker, text in turns]}
        for i, turns in enumerate(conversations)
    ]


SHAREGPT = json.dumps(sharegpt([("human", "x" * 40), ("gpt", "y" * 80), ("human", "z" * 8), ("gpt", "w" * 4)]), indent=1)
EXAMPLES = {"azure": AZURE_2023, "vidur": VIDUR, "burstgpt": BURSTGPT, "mooncake": MOONCAKE, "sharegpt": SHAREGPT}
EXAMPLES["capture"] = "\n".join(
    json.dumps(row)
    for row in [
        CAPTURE_HEAD,
        {"arrival_s": 0.5, "prompt_tokens": 9, "output_tokens": 3, "prompt_bytes": 36, "exact": True, "hashes": "a" * 24},
    ]
)


def read(tmp_path: Path, content: str | bytes, **options: Any) -> Workload:
    file = tmp_path / "trace.txt"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_trace(file, **options)


def lengths(workload: Workload) -> list[tuple[int, int]]:
    return [(request.prompt_tokens, request.output_tokens) for request in workload.requests]


def arrivals(workload: Workload) -> list[float | None]:
    return [request.arrival_s for request in workload.requests]


# ---- each format


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_told_from_the_content(tmp_path: Path, name: str) -> None:
    workload = read(tmp_path, EXAMPLES[name])
    assert FORMATS[name].title in workload.source
    assert workload == read(tmp_path, EXAMPLES[name], format=name)


def test_azure_of_2023_has_seven_digits_of_a_second(tmp_path: Path) -> None:
    workload = read(tmp_path, AZURE_2023)
    assert lengths(workload) == [(374, 44), (396, 109), (879, 55)]
    assert arrivals(workload) == pytest.approx([0, 4.314579, 60.0])


def test_azure_of_2024_has_offsets_and_whole_seconds(tmp_path: Path) -> None:
    workload = read(tmp_path, AZURE_2024)
    assert lengths(workload) == [(2162, 5), (2399, 6), (76, 15)]
    assert arrivals(workload) == pytest.approx([0, 0.25, 0.99007])


def test_vidur(tmp_path: Path) -> None:
    workload = read(tmp_path, VIDUR)
    assert lengths(workload) == [(374, 44), (396, 109), (879, 55)]
    assert arrivals(workload) == [0, 4.314579, 4.541877]


def test_vidur_without_arrivals_leaves_them_to_the_load_generator(tmp_path: Path) -> None:
    workload = read(tmp_path, "num_prefill_tokens,num_decode_tokens,total_tokens,pd_ratio\n1000,10,1010,100.0\n20,5,25,4.0\n")
    assert lengths(workload) == [(1000, 10), (20, 5)]
    assert arrivals(workload) == [None, None]
    assert "no arrivals" in workload.notes[0]


def test_burstgpt_leaves_out_what_failed(tmp_path: Path) -> None:
    workload = read(tmp_path, BURSTGPT)
    assert lengths(workload) == [(472, 18), (417, 276)]
    assert arrivals(workload) == [0, 113.5]
    assert workload.notes == ("1 request left out: failed when the trace was taken (no response tokens).",)


def test_burstgpt_with_sessions(tmp_path: Path) -> None:
    workload = read(tmp_path, BURSTGPT_3)
    assert lengths(workload) == [(906, 446), (36, 29)]
    assert arrivals(workload) == [0, 51]


def test_mooncake_shares_equal_leading_blocks(tmp_path: Path) -> None:
    workload = read(tmp_path, MOONCAKE)
    assert lengths(workload) == [(1300, 500), (1024, 490), (1100, 10)]
    assert arrivals(workload) == [0, 3.052, 3.5]
    assert shared_tokens(workload.requests) == [0, 1024, 512]


def test_mooncake_tells_a_full_block_from_one_that_is_not(tmp_path: Path) -> None:
    rows = [(600, [5, 6]), (600, [5, 6]), (1024, [5, 6]), (700, [5]), (700, [5])]
    text = "".join(
        json.dumps({"timestamp": i, "input_length": n, "output_length": 1, "hash_ids": ids}) + "\n"
        for i, (n, ids) in enumerate(rows)
    )
    workload = read(tmp_path, text)
    assert [request.prompt_tokens for request in workload.requests] == [600, 600, 1024, 700, 700]
    assert shared_tokens(workload.requests) == [0, 600, 512, 512, 512]  # what no hash is known of is shared with nobody


def test_sharegpt_makes_a_request_of_each_answer_and_estimates_lengths(tmp_path: Path) -> None:
    two = sharegpt(
        [("human", "a" * 40), ("gpt", "b" * 80), ("human", "c" * 8), ("gpt", "d" * 4)],
        [("system", "e" * 100), ("user", "f" * 20), ("chatgpt", "g" * 12)],
        [("human", "nobody answered")],
    )
    for text in (json.dumps(two), json.dumps(two, indent=2), "\n".join(json.dumps(one) for one in two)):
        workload = read(tmp_path, text)
        assert lengths(workload) == [(10, 20), (30, 3), (10 + 20 + 2, 1)]  # first turns first; 4 bytes a token
        assert shared_tokens(workload.requests) == [0, 0, 10]
        assert arrivals(workload) == [None, None, None]
        assert any("estimated" in note for note in workload.notes)
        assert any(note == "1 request left out: a conversation without an answer." for note in workload.notes)


def test_sharegpt_counts_tokens_where_a_tokenizer_is_given(tmp_path: Path) -> None:
    tokenizer = open_checkpoint("smollm2-135m").tokenizer
    text = json.dumps(sharegpt([("human", "What is the capital of France?"), ("gpt", "Paris.")]))
    workload = read(tmp_path, text, tokenizer=tokenizer)
    assert lengths(workload) == [(7, len(tokenizer.encode("Paris.")))]
    assert not any("estimated" in note for note in workload.notes)


def test_sharegpt_takes_whole_conversations_up_to_the_limit(tmp_path: Path) -> None:
    turns = [("human", "a" * 40), ("gpt", "b" * 40)] * 2
    workload = read(tmp_path, json.dumps(sharegpt(*[turns] * 5)), limit=3)
    assert lengths(workload) == [(10, 10), (10, 10), (30, 10)]


def capture(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in [CAPTURE_HEAD, *rows])


def captured(arrival: float | None, tokens: int, hashes: str, size: int, exact: bool, output: int = 1) -> dict[str, Any]:
    """``hashes``: a letter for each block."""
    spelled = "".join(letter * 8 for letter in hashes)
    row = {"arrival_s": arrival, "prompt_tokens": tokens, "output_tokens": output}
    return {**row, "prompt_bytes": size, "exact": exact, "hashes": spelled}


def test_a_capture_of_token_ids_shares_whole_blocks_of_four(tmp_path: Path) -> None:
    text = capture(
        captured(2.0, 11, "abc", 44, True),  # written in the order in which they ended
        captured(1.0, 9, "abx", 36, True),
        captured(4.0, 11, "abc", 44, True),
        captured(3.0, 20, "ay", 32, True),  # 12 tokens more than ids are known of
    )
    workload = read(tmp_path, text)
    assert arrivals(workload) == [0, 1, 2, 3]
    assert [request.prompt_tokens for request in workload.requests] == [9, 11, 20, 11]
    assert shared_tokens(workload.requests) == [0, 8, 4, 11]
    assert not workload.notes
    assert arrivals(read(tmp_path, text, limit=2)) == [0, 1]  # the first two to arrive


def test_a_capture_of_text_spreads_tokens_over_bytes_and_shares_them_alike(tmp_path: Path) -> None:
    text = capture(
        captured(0.0, 10, "ab", 32, False),  # 5 tokens a block
        captured(1.0, 30, "abcd", 64, False),  # 10 for the known blocks, 10 for each of the others
        captured(2.0, 30, "abcd", 64, False),
        captured(3.0, 7, "ab", 32, False),  # fewer than what it shares had: the first block, and 2 of its own
    )
    workload = read(tmp_path, text)
    assert [request.prompt_tokens for request in workload.requests] == [10, 30, 30, 7]
    assert shared_tokens(workload.requests) == [0, 10, 30, 5]
    assert any("about as long" in note for note in workload.notes)


def test_a_capture_without_arrivals_stays_in_order(tmp_path: Path) -> None:
    workload = read(tmp_path, capture(captured(None, 5, "", 0, False), captured(None, 6, "", 0, False)))
    assert [request.prompt_tokens for request in workload.requests] == [5, 6]
    assert arrivals(workload) == [None, None]


def test_a_capture_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="octavo_capture in line 1 is 2: version 1 is accepted"):
        read(tmp_path, '{"octavo_capture": 2}\n{}\n')


# ---- what is common


def test_requests_are_sorted_by_arrival_and_begin_at_zero(tmp_path: Path) -> None:
    workload = read(tmp_path, "arrived_at,num_prefill_tokens,num_decode_tokens\n9,3,1\n5,1,1\n7,2,1\n")
    assert arrivals(workload) == [0, 2, 4]
    assert lengths(workload) == [(1, 1), (2, 1), (3, 1)]
    assert [request.index for request in workload.requests] == [0, 1, 2]


def test_time_can_be_scaled_and_requests_limited(tmp_path: Path) -> None:
    workload = read(tmp_path, VIDUR, time_scale=0.5, limit=2)
    assert arrivals(workload) == [0, 4.314579 / 2]


def test_requests_are_cut_to_the_context_and_counted(tmp_path: Path) -> None:
    workload = read(tmp_path, VIDUR, max_model_len=512)
    assert lengths(workload) == [(374, 44), (395, 109), (449, 55)]  # 504 in all: 8 of the context are left to a template
    assert workload.notes == ("2 requests cut to 504 tokens, what the model's context leaves beside a chat template.",)


def test_a_byte_order_mark_other_columns_and_another_order_do_no_harm(tmp_path: Path) -> None:
    workload = read(tmp_path, b"\xef\xbb\xbfmore, GeneratedTokens ,timestamp,ContextTokens\r\n,5,2024-05-10 00:00:00,7\r\n")
    assert lengths(workload) == [(7, 5)]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("1,2", "num_decode_tokens is missing"),
        ("x,2,3", "arrived_at is 'x'"),
        ("nan,2,3", "arrived_at is 'nan'"),
        ("1,0,3", "num_prefill_tokens is '0'"),
        ("1,-5,3", "num_prefill_tokens is '-5'"),
        ("1,2.5,3", "num_prefill_tokens is '2.5'"),
        ("1,2,99999999999", "num_decode_tokens is '99999999999'"),
        ('1,2,"3\x00', "num_decode_tokens is"),
    ],
)
def test_a_damaged_row_is_left_out_and_counted_with_the_first_one_s_line(tmp_path: Path, row: str, problem: str) -> None:
    header = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
    workload = read(tmp_path, header + f"1,2,3\n{row}\n{row}\n4,5,6\n")
    assert lengths(workload) == [(2, 3), (5, 6)]
    assert workload.notes[0].startswith("2 damaged rows left out, the first of them in line 3: ")
    assert problem in workload.notes[0]
    with pytest.raises(WorkloadError, match=r"no request that can be used; line 2: .* \(and 1 more damaged row\)"):
        read(tmp_path, header + f"{row}\n{row}\n")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "no valid JSON"),
        ("[]", "no JSON object"),
        ("[" * 100_000, "no valid JSON"),
        ('{"timestamp": 1, "input_length": 2}', "output_length is missing"),
        ('{"timestamp": true, "input_length": 2, "output_length": 3}', "timestamp is True"),
        ('{"timestamp": 1, "input_length": 2, "output_length": 3, "hash_ids": [1, 2]}', "2 entries for 2 tokens"),
        ('{"timestamp": 1, "input_length": 2, "output_length": 3, "hash_ids": "no"}', "hash_ids is 'no'"),
    ],
)
def test_a_damaged_line_of_json_is_left_out(tmp_path: Path, line: str, problem: str) -> None:
    workload = read(tmp_path, MOONCAKE + line + "\n")
    assert len(workload.requests) == 3
    assert "line 4" in workload.notes[0]
    assert problem in workload.notes[0]


def test_a_damaged_conversation_is_left_out_and_the_next_one_found(tmp_path: Path) -> None:
    good = json.dumps(sharegpt([("human", "a" * 40), ("gpt", "b" * 80)])[0])
    workload = read(
        tmp_path, f'{good}\n{{"conversations": [{{"from": "human" "value"}}]}}\n{good}\n{{"conversations": 5}}\n{good[:50]}'
    )
    assert lengths(workload) == [(10, 20), (10, 20)]
    assert workload.notes[0].startswith("3 damaged rows left out, the first of them in line 2: it is no valid JSON")


def test_a_conversation_longer_than_what_is_read_at_once(tmp_path: Path) -> None:
    text = json.dumps(sharegpt([("human", "a" * 5_000_000), ("gpt", "b" * 80)], [("human", "c" * 4), ("gpt", "d" * 4)]))
    assert lengths(read(tmp_path, text)) == [(1_250_000, 20), (1, 1)]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "it is empty"),
        ("\n\n", "it is empty"),
        ("name,age\nx,5\n", "line 1, 'name,age', begins none. Accepted are azure: "),
        ("\x89PNG\r\n\x1a\n\x00", "begins none"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request that can be used"),
        (BURSTGPT.splitlines()[0] + "\n45,GPT-4,1087,0,1087,API log\n", "1 request left out: failed when the trace was taken"),
    ],
)
def test_a_file_that_is_wholly_wrong_is_refused_in_a_sentence(tmp_path: Path, content: str, problem: str) -> None:
    with pytest.raises(WorkloadError) as refusal:
        read(tmp_path, content)
    assert problem in str(refusal.value)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_that_was_named_wrongly_is_refused(tmp_path: Path, name: str) -> None:
    for other in ("name,age\nx,5\n", "", "[1, 2]"):
        with pytest.raises(WorkloadError):
            read(tmp_path, other, format=name)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"format": "excel"}, "format is 'excel': azure, vidur,"),
        ({"limit": 0}, "limit is 0"),
        ({"time_scale": 0.0}, "time_scale is 0.0"),
        ({"time_scale": float("nan")}, "time_scale is nan"),
        ({"max_model_len": 3}, "max_model_len is 3"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(WorkloadError, match=problem):
        read(tmp_path, VIDUR, **options)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere.csv"):
        with pytest.raises(WorkloadError, match="cannot be read"):
            read_trace(path)


# ---- properties


def _mutations(text: str) -> st.SearchStrategy[bytes]:
    """The text with a few pieces replaced by others."""
    data = text.encode()
    pieces = st.one_of(
        st.binary(max_size=6), st.sampled_from([b"", b"\x00", b'"', b"\n", b"-1", b"1e999", b"null", b"{", b"[[[", b"9" * 5000])
    )
    edit = st.tuples(st.integers(0, len(data)), st.integers(0, 12), pieces)

    def apply(edits: list[tuple[int, int, bytes]]) -> bytes:
        changed = data
        for at, length, piece in edits:
            changed = changed[:at] + piece + changed[at + length :]
        return changed

    return st.lists(edit, max_size=5).map(apply)


@pytest.mark.parametrize("name", FORMATS)
@given(content=st.data(), named=st.booleans(), context_length=st.one_of(st.none(), st.integers(16, 4096)))
def test_damage_is_never_worse_than_a_refusal(name: str, content: st.DataObject, named: bool, context_length: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            data = content.draw(_mutations(EXAMPLES[name]))
            workload = read(Path(folder), data, format=name if named else None, max_model_len=context_length)
        except OctavoError:
            return
        assert workload.requests
        times = [request.arrival_s for request in workload.requests if request.arrival_s is not None]
        assert times == sorted(times)
        if context_length is not None:
            assert all(request.prompt_tokens + request.output_tokens <= context_length for request in workload.requests)


@given(st.lists(st.lists(st.integers(0, 2), max_size=5), max_size=10))
def test_a_prefix_tree_shares_exactly_the_leading_blocks(prompts: list[list[int]]) -> None:
    keys = iter(range(1000))
    tree = PrefixTree(lambda: next(keys))
    found = []
    for blocks in prompts:
        node, known = tree.find(blocks, 10**9)
        if blocks[known:]:
            node = tree.grow(node, blocks[known:], [3] * (len(blocks) - known))
        assert tree.depth(node) == 3 * len(blocks)
        found.append([(segment.key, i) for segment in tree.segments(node) for i in range(segment.tokens)])
        assert (node == ROOT) == (not blocks)
    for one, blocks in zip(found, prompts, strict=True):
        assert len(one) == 3 * len(blocks)
        for other, others in zip(found, prompts, strict=True):
            common = next(
                (i for i, (a, b) in enumerate(zip(blocks, others, strict=False)) if a != b), min(len(blocks), len(others))
            )
            tokens = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
            assert tokens == 3 * common


# ---- the real files


@pytest.mark.skipif(not REAL.is_dir(), reason="the public traces are not at hand")
@pytest.mark.parametrize(
    ("name", "requests", "median"), [("splitwise_conv.csv", 19366, 1020), ("splitwise_code.csv", 8819, 1469)]
)
def test_a_public_trace_reads_whole(name: str, requests: int, median: int) -> None:
    workload = read_trace(REAL / name)
    assert len(workload.requests) == requests
    assert sorted(request.prompt_tokens for request in workload.requests)[requests // 2] == median
    assert not workload.notes
