"""Prompts: what is shared is the same, what is not is not, and lengths are what was asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.prompts import PromptMaker
from octavo.bench.suites import suite
from octavo.bench.words import COMMON
from octavo.bench.workload import BenchRequest, Segment
from octavo.errors import WorkloadError
from octavo.models.load import open_checkpoint
from octavo.models.tokenizer import Tokenizer
from tests.checkpoints import tiny_llama


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return open_checkpoint("smollm2-135m").tokenizer


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Its vocabulary has next to no words."""
    return open_checkpoint(str(tiny_llama(tmp_path_factory.mktemp("checkpoint") / "tiny"))).tokenizer


def request(*segments: tuple[int, int]) -> BenchRequest:
    return BenchRequest(0, tuple(Segment(key, tokens) for key, tokens in segments), 1)


SEGMENTS = st.lists(st.tuples(st.integers(-(2**63), 2**63), st.integers(1, 60)), min_size=1, max_size=4)


@given(seed=st.integers(), key=st.integers(), tokens=st.integers(1, 300), more=st.integers(0, 300))
def test_a_shorter_segment_is_the_beginning_of_a_longer_one(seed: int, key: int, tokens: int, more: int) -> None:
    maker = PromptMaker(seed, vocab_size=1000)
    assert maker.ids(request((key, tokens))) == maker.ids(request((key, tokens + more)))[:tokens]
    assert maker.text(request((key, tokens + more))).startswith(maker.text(request((key, tokens))))


@given(SEGMENTS)
def test_a_prompt_is_its_segments_in_order_and_two_makers_agree(parts: list[tuple[int, int]]) -> None:
    one, other = PromptMaker(5, vocab_size=1000), PromptMaker(5, vocab_size=1000)
    assert one.ids(request(*parts)) == [token for part in parts for token in other.ids(request(part))]
    assert one.text(request(*parts)) == " ".join(other.text(request(part)) for part in parts)


def test_other_keys_and_other_seeds_have_other_contents() -> None:
    maker = PromptMaker(0, vocab_size=50_000)
    firsts = {tuple(maker.ids(request((key, 4)))) for key in range(1000)}
    assert len(firsts) == 1000
    seeds = {tuple(PromptMaker(seed, vocab_size=50_000).ids(request((0, 4)))) for seed in range(1000)}
    assert len(seeds) == 1000


def test_the_contents_of_a_seed_are_fixed_for_good() -> None:
    maker = PromptMaker(0, vocab_size=49152)
    assert maker.ids(request((0, 3), (1, 2))) == [44012, 1931, 12083, 33185, 36216]
    assert maker.text(request((0, 3), (1, 2))) == "letter child week class around"


def test_ids_are_spread_evenly_over_the_vocabulary() -> None:
    maker = PromptMaker(0, vocab_size=1000)
    ids = maker.ids(request((0, 94_000)))
    low, high = 1000 // 32, 1000 - 1000 // 32  # the margins at either end are left out
    assert (min(ids), max(ids)) == (low, high - 1)
    counts = [ids.count(i) for i in (low, 200, 500, high - 1)]
    assert all(60 < count < 140 for count in counts)  # 100 expected, deviation 10


def test_with_a_tokenizer_ids_are_ordinary_tokens(smollm2: Tokenizer) -> None:
    ids = PromptMaker(0, tokenizer=smollm2).ids(request((0, 200_000)))
    assert not smollm2.special_ids & set(ids)
    assert all(smollm2.token_bytes(token) for token in set(ids))


@pytest.mark.parametrize("name", ["mixed", "shared-prefix"])
def test_text_has_exactly_the_tokens_that_are_asked_for(smollm2: Tokenizer, name: str) -> None:
    maker = PromptMaker(0, tokenizer=smollm2)
    assert maker.exact
    for one in suite(name, max_model_len=2048).requests:
        assert len(smollm2.encode(maker.text(one))) == one.prompt_tokens


def test_so_it_has_where_the_vocabulary_has_hardly_any_words(tiny: Tokenizer) -> None:
    maker = PromptMaker(0, tokenizer=tiny)
    assert maker.exact
    one = request((0, 100), (1, 33))
    assert len(tiny.encode(maker.text(one), add_special_tokens=False)) == 133


def test_text_shares_tokens_where_segments_are_shared(smollm2: Tokenizer) -> None:
    maker = PromptMaker(0, tokenizer=smollm2)
    one, other = (smollm2.encode(maker.text(request((0, 70), (key, 9)))) for key in (1, 2))
    assert one[:70] == other[:70]
    assert one[70] != other[70]


def test_text_leaves_room_for_what_the_server_adds(smollm2: Tokenizer) -> None:
    maker = PromptMaker(0, tokenizer=smollm2)
    one = request((0, 20), (1, 10))
    assert len(smollm2.encode(maker.text(one, overhead=15))) == 15
    assert maker.text(one).startswith(maker.text(one, overhead=15))
    assert len(smollm2.encode(maker.text(one, overhead=1000))) == 1  # a request cannot be empty


def test_without_a_tokenizer_text_is_a_common_word_for_each_token(smollm2: Tokenizer) -> None:
    maker = PromptMaker(0)
    assert not maker.exact
    text = maker.text(request((0, 500)))
    assert len(text.split()) == 500
    assert set(text.split()) <= set(COMMON)
    assert len(smollm2.encode(text)) == pytest.approx(500, rel=0.03)


def test_ids_without_a_vocabulary_are_refused() -> None:
    with pytest.raises(WorkloadError, match="vocab_size or a tokenizer"):
        PromptMaker(0).ids(request((0, 1)))
    with pytest.raises(WorkloadError, match="vocab_size is 1"):
        PromptMaker(0, vocab_size=1)
