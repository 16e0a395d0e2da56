"""Every metric against values worked out by hand from a known sequence of events."""

from __future__ import annotations

import pytest

from octavo.bench.goals import parse_goals
from octavo.bench.metrics import Spread, measure, token_gaps
from octavo.bench.record import DISCONNECT, TIMEOUT, RequestRecord
from octavo.errors import ConfigError


def record(index: int = 0, intended: float = 0.0, moments: tuple[float, ...] = (), **fields: object) -> RequestRecord:
    """A request that completed with its last token, one token in each piece, unless told otherwise."""
    made = RequestRecord(index, prompt_tokens=10, asked_tokens=len(moments), intended=intended, sent=intended)
    made.moments, made.tokens = list(moments), [1] * len(moments)
    made.output_tokens, made.token_source = len(moments), "server"
    made.ended = moments[-1] if moments else intended
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def of(values: tuple[float, ...]) -> ApproxSpread:
    """Equal to the statistics of these values, up to rounding."""
    return ApproxSpread(values)


class ApproxSpread:
    def __init__(self, values: tuple[float, ...]):
        ordered = sorted(values)
        places = [p * (len(values) - 1) for p in (0.5, 0.9, 0.99)]
        between = [ordered[int(x)] + (x - int(x)) * (ordered[min(int(x) + 1, len(values) - 1)] - ordered[int(x)]) for x in places]
        self.expected = (sum(values) / len(values), *between, ordered[-1])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Spread):
            return NotImplemented
        return (other.mean, other.p50, other.p90, other.p99, other.max) == pytest.approx(self.expected)

    def __repr__(self) -> str:
        return f"{self.expected}"


# Two requests: A is meant for 100.0, B for 100.5 and sent late; both stall once.
A = record(0, 100.0, (100.2, 100.3, 100.4, 101.0))
B = record(1, 100.5, (101.5, 101.6), sent=100.9)


def test_latencies_are_those_of_the_formulas() -> None:
    m = measure([A, B])
    assert m.ttft_s == of((0.2, 1.0))
    assert m.itl_s == of((0.1, 0.1, 0.6, 0.1))
    assert m.tpot_s == of((0.8 / 3, 0.1))
    assert m.e2e_s == of((1.0, 1.1))


def test_statistics_are_interpolated_between_the_two_nearest_values() -> None:
    spread = Spread.of([1.0, 2.0, 3.0, 4.0, 10.0])
    assert spread is not None
    # place p * (5 - 1): p90 is at 3.6, between 4 and 10; p99 at 3.96
    assert (spread.mean, spread.p50, spread.max) == (4.0, 3.0, 10.0)
    assert spread.p90 == pytest.approx(4 + 0.6 * 6)
    assert spread.p99 == pytest.approx(4 + 0.96 * 6)
    assert Spread.of([]) is None


def test_rates_are_over_the_time_from_the_first_intended_send_to_the_last_end() -> None:
    m = measure([A, B])
    assert m.duration_s == pytest.approx(1.6)
    assert m.output_tok_s == pytest.approx(6 / 1.6)
    assert m.total_tok_s == pytest.approx(26 / 1.6)
    assert m.requests_s == pytest.approx(2 / 1.6)
    assert (m.completed, m.errors, m.output_tokens, m.prompt_tokens) == (2, {}, 6, 20)


def test_an_answer_that_is_kept_open_after_its_last_token_lengthens_the_run_but_no_latency() -> None:
    m = measure([record(0, 0.0, (1.0, 2.0), ended=5.0)])
    assert m.e2e_s is not None
    assert m.e2e_s.max == 2.0
    assert m.duration_s == 5.0


def test_a_piece_of_several_tokens_is_that_many_gaps_where_the_server_says_so() -> None:
    r = record(0, 0.0, (1.0, 1.4, 1.5), tokens=[1, 4, 1], output_tokens=6)
    assert token_gaps(r) == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.1])
    m = measure([r])
    assert m.icl_s == of((0.4, 0.1))
    assert m.tpot_s == of((0.5 / 5,))
    assert (m.output_tokens, m.chunks) == (6, 3)


def test_tokens_that_come_with_the_first_piece_have_no_gap() -> None:
    assert token_gaps(record(0, 0.0, (1.0, 1.2), tokens=[3, 2], output_tokens=5)) == pytest.approx([0.1, 0.1])


def test_text_without_a_token_passes_its_gap_on_to_the_next_token() -> None:
    r = record(0, 0.0, (1.0, 1.1, 1.3), tokens=[1, 0, 1], output_tokens=2)
    assert token_gaps(r) == pytest.approx([0.3])


def test_pieces_stand_for_tokens_where_only_the_whole_was_counted() -> None:
    r = record(0, 0.0, (1.0, 1.4, 1.5), stated=False, output_tokens=9)
    assert token_gaps(r) == pytest.approx([0.4, 0.1])
    assert r.tpot == pytest.approx(0.5 / 8)


def test_an_answer_without_any_count_has_as_many_tokens_as_pieces() -> None:
    r = record(0, 0.0, (1.0, 2.0, 3.0), stated=False, output_tokens=None, token_source="chunks")
    m = measure([r])
    assert (r.count, m.output_tokens, m.token_sources) == (3, 3, {"chunks": 1})


def test_one_token_or_one_piece_has_no_time_per_token() -> None:
    one = record(0, 0.0, (1.0,))
    whole = record(1, 0.0, (3.0,), tokens=[50], output_tokens=50)
    m = measure([one, whole])
    assert (m.tpot_s, m.itl_s) == (None, None)
    assert m.ttft_s == m.e2e_s == of((1.0, 3.0))
    assert m.output_tokens == 51


def test_errors_are_counted_by_kind_and_left_out_of_latencies_and_tokens() -> None:
    broken = record(1, 0.0, (0.5, 9.0), error=DISCONNECT, ended=9.5)
    m = measure([record(0, 0.0, (1.0, 2.0)), broken, record(2, 0.0, error=TIMEOUT, ended=4.0), record(3, error="http_429")])
    assert m.errors == {"disconnect": 1, "http_429": 1, "timeout": 1}
    assert m.completed == 1
    assert m.e2e_s == of((2.0,))
    assert m.output_tok_s == pytest.approx(2 / 9.5)


def test_what_an_interruption_found_under_way_counts_for_rates_alone() -> None:
    going = record(1, 0.0, (1.0, 2.0, 3.0), ended=None, output_tokens=None)
    m = measure([record(0, 0.0, (1.0, 2.0)), going, record(2, 3.5, ended=None)], end=4.0)
    assert (m.completed, m.unfinished) == (1, 2)
    assert m.ttft_s == of((1.0,))
    assert m.duration_s == 4.0
    assert m.output_tok_s == pytest.approx(5 / 4)
    assert m.total_tok_s == pytest.approx((5 + 20) / 4)


def test_fewer_tokens_than_asked_for_are_noted() -> None:
    assert measure([record(0, 0.0, (1.0, 2.0), asked_tokens=3), A]).short == 1


def test_nothing_measured_is_no_figure() -> None:
    m = measure([])
    assert (m.ttft_s, m.output_tok_s, m.requests_s, m.completed) == (None, None, None, 0)


def test_goodput_counts_who_met_every_goal_and_failures_against_it() -> None:
    goals = parse_goals(["ttft:0.5", "tpot:300ms"])
    assert goals is not None
    slow = record(2, 100.0, (100.4, 100.5, 101.4))  # TPOT 0.5
    single = record(3, 100.0, (100.5,))  # no TPOT to miss; TTFT just at the goal
    m = measure([A, B, slow, single, record(4, 100.0, error=TIMEOUT, ended=102.0)], goals=goals)
    assert m.goodput is not None
    assert m.goodput.requests == 2
    assert m.goodput.requests_s == pytest.approx(2 / 2.0)
    assert m.goodput.fraction == pytest.approx(2 / 5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ttft", "a colon and a time"),
        ("speed:3", "ttft, tpot, e2e"),
        ("ttft:x", "a colon and a time"),
        ("ttft:1e", "is no number"),
        ("tpot:0", "above 0"),
        ("ttft:500", "500 seconds; write 500ms or 500s"),
    ],
)
def test_goals_that_make_no_sense_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_goals([text])


def test_goals_are_seconds_or_what_the_unit_says() -> None:
    goals = parse_goals(
        [
            "ttft:0.5",
            "tpot:50ms",
            "e2e:120",
        ]
    )
    assert goals is not None
    assert goals.bounds == {"ttft": 0.5, "tpot": 0.05, "e2e": 120.0}
    assert parse_goals([]) is None
    with pytest.raises(ConfigError, match="twice"):
        parse_goals(["ttft:1", "ttft:2"])
