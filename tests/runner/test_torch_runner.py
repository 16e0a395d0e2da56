"""The torch runner against transformers in float32, on tiny random checkpoints."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from octavo.errors import ConfigError
from octavo.kv.arena import KVSpec
from octavo.kv.view import Move
from octavo.models.decoder import build_program
from octavo.models.load import open_checkpoint
from octavo.runner.torch_runner import TorchRunner
from octavo.scheduler.plan import Logits, Row, SlotSampling, StepPlan
from tests.checkpoints import tiny_gguf, tiny_llama
from tests.placement import CONTIGUOUS, MIXED, make_view

PATHS = ["fused", "gather", "per-request"]
BOUND = 1e-4
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
MODELS = {
    "plain": {},
    "no groups, biases, own head": {
        "num_key_value_heads": 4,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": False,
    },
    "groups of 3, llama 3 rope": {"num_attention_heads": 6, "hidden_size": 96, "rope_parameters": LLAMA3},
}


class Model:
    """A checkpoint, and transformers' logits of it."""

    def __init__(self, folder, **overrides):
        self.folder = tiny_llama(folder, **overrides)
        self.checkpoint = open_checkpoint(str(self.folder))
        self.config = self.checkpoint.config
        self.reference = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32).eval()
        random = np.random.default_rng(0)
        self.sequences = [random.integers(3, self.config.vocab, 330).tolist() for _ in range(4)]
        with torch.no_grad():
            self.logits = self.reference(torch.tensor(self.sequences)).logits.numpy()

    def runner(self, attention="fused", dtype="float32", slots=8, checkpoint=None):
        checkpoint = checkpoint or self.checkpoint
        runner = TorchRunner(
            build_program(checkpoint.config),
            checkpoint,
            dtype=dtype,
            attention=attention,
            threads=1,
            slots=slots,
            max_model_len=400,
            max_batched_tokens=512,
        )
        runner.keep_logits = True
        return runner

    def view(self, block=16, dtype="float32"):
        spec = KVSpec(self.config.layers, self.config.kv_heads, self.config.head_dim, dtype)
        return make_view(spec, 8, 340, block)

    def row(self, slot, start, length, logits=Logits.ALL):
        return Row(slot, start, length, self.sequences[slot][start : start + length], logits)

    def expected(self, *rows):
        parts = [self.logits[r.slot, r.start : r.start + r.length] for r in rows]
        return np.concatenate([p if r.logits == Logits.ALL else p[-1:] for p, r in zip(parts, rows, strict=True) if r.logits])


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    return Model(tmp_path_factory.mktemp("model"), **MODELS[request.param])


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return Model(tmp_path_factory.mktemp("model"))


def run(runner, view, *rows, opened=()):
    return runner.execute(StepPlan(0, rows, opened), view)


@pytest.mark.parametrize("attention", PATHS)
def test_prefill_decode_and_both_at_once(model, attention):
    """A sequence is prefilled whole, one in chunks, one token by token; each step's logits are transformers'."""
    runner, view = model.runner(attention), model.view()
    whole, chunked, single = (lambda s, n: model.row(0, s, n)), (lambda s, n: model.row(1, s, n)), (lambda s: model.row(2, s, 1))
    steps = [
        [whole(0, 300)],
        [chunked(0, 17), single(0)],
        [single(1), whole(300, 1), chunked(17, 100)],
        [chunked(117, 120), single(2), whole(301, 1), model.row(3, 0, 90)],
        [whole(302, 1), single(3), chunked(237, 2), model.row(3, 90, 90, Logits.LAST)],
        *([model.row(s, start + i, 1) for s, start in enumerate((303, 239, 4, 180))] for i in range(4)),
    ]
    for rows in steps:
        result = run(runner, view, *rows)
        assert np.abs(result.logits - model.expected(*rows)).max() < BOUND


@pytest.mark.parametrize("attention", PATHS)
@pytest.mark.parametrize("block", [CONTIGUOUS, MIXED, 1, 2, 8, 64, 256])
def test_every_layout_in_an_arena_of_nan(plain, attention, block):
    runner, view = plain.runner(attention), plain.view(block)
    for rows in (
        [plain.row(0, 0, 70), plain.row(1, 0, 33), plain.row(2, 0, 1)],
        [plain.row(0, 70, 1), plain.row(1, 33, 40), plain.row(2, 1, 1), plain.row(3, 0, 31)],
        [plain.row(0, 71, 1), plain.row(1, 73, 1), plain.row(2, 2, 1), plain.row(3, 31, 1)],
    ):
        assert np.abs(run(runner, view, *rows).logits - plain.expected(*rows)).max() < BOUND


def test_logits_come_for_the_rows_that_want_them_in_the_plans_order(plain):
    runner, view = plain.runner(), plain.view()
    rows = [
        plain.row(0, 0, 40, Logits.LAST),
        plain.row(1, 0, 20, Logits.NONE),
        plain.row(2, 0, 1, Logits.LAST),
        plain.row(3, 0, 50, Logits.ALL),
    ]
    result = run(runner, view, *rows)
    expected = plain.expected(*rows)
    assert result.logits.shape == expected.shape == (52, plain.config.vocab)
    assert np.abs(result.logits - expected).max() < BOUND
    # A token is sampled for every row with logits, from its last position.
    assert result.tokens.dtype == np.int32
    assert result.tokens.tolist() == expected[[0, 1, 51]].argmax(-1).tolist()
    nothing = run(runner, view, plain.row(1, 20, 20, Logits.NONE))
    assert nothing.tokens.tolist() == []
    assert nothing.logits is None
    runner.keep_logits = False
    assert run(runner, view, plain.row(2, 1, 1)).logits is None


def test_a_row_without_tokens_continues_what_its_slot_sampled(plain):
    """Greedy continuations of three prompts, batched: the tokens never pass through the caller."""
    runner, view = plain.runner(), plain.view()
    lengths = [30, 7, 55]
    opened = tuple(SlotSampling(slot, 0.0, 1.0, 0, 0, 0) for slot in range(3))
    rows = [plain.row(slot, 0, n, Logits.LAST) for slot, n in enumerate(lengths)]
    found = [run(runner, view, *rows, opened=opened).tokens]
    for step in range(11):
        rows = [Row(slot, n + step, 1, None, Logits.LAST) for slot, n in enumerate(lengths)]
        found.append(run(runner, view, *rows[::-1]).tokens[::-1])
    for slot, n in enumerate(lengths):
        with torch.no_grad():
            prompt = torch.tensor([plain.sequences[slot][:n]])
            out = plain.reference.generate(prompt, max_new_tokens=12, min_new_tokens=12, do_sample=False, eos_token_id=None)
        assert [int(tokens[slot]) for tokens in found] == out[0, n:].tolist()


def test_a_plan_without_rows(plain):
    result = plain.runner().execute(StepPlan(0, ()), plain.view())
    assert result.tokens.tolist() == []
    assert result.launches == 0


def test_moves_are_carried_out_in_order_before_the_step(plain):
    """A sequence's blocks are moved between steps, one of them by less than its own length, as a compaction slides a run."""
    runner, view = plain.runner(), plain.view(CONTIGUOUS)
    run(runner, view, plain.row(0, 0, 100))
    here, free = int(view.table[0, 0]), int(view.table[5, 0])
    moved = dataclasses.replace(
        view, table=view.table.copy(), moves=(Move(here, free, 100), Move(free, free + 7, 100), Move(free + 7, free + 4, 100))
    )
    moved.table[0, 0] = free + 4
    row = plain.row(0, 100, 1)
    assert np.abs(run(runner, moved, row).logits - plain.expected(row)).max() < BOUND


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_1"])
def test_gguf_weights_are_those_that_its_reader_gives(plain, tmp_path, monkeypatch, kind):
    """The runner converts weights, some rows at a time, and looks up embeddings as the file's reader dequantises them."""
    monkeypatch.setattr("octavo.runner.weights.ROWS_AT_ONCE", 37)
    checkpoint = open_checkpoint(str(tiny_gguf(tmp_path / "tiny.gguf", plain.folder, kind=kind)))
    result = run(plain.runner(checkpoint=checkpoint), plain.view(), plain.row(0, 0, 40))
    model = AutoModelForCausalLM.from_pretrained(plain.folder, dtype=torch.float32).eval()
    names = {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm", "embed": "model.embed_tokens"}
    names |= {x: f"self_attn.{x}_proj" for x in "qkvo"} | {x: f"mlp.{x}_proj" for x in ("gate", "up", "down")}
    names |= {"final_norm": "model.norm"}
    weights = {}
    for name in build_program(checkpoint.config).weight_names():
        layer, _, part = name.rpartition(".")
        key = f"model.{layer}.{names[part]}.weight" if layer else f"{names.get(name, 'lm_head')}.weight"
        weights[key] = torch.from_numpy(np.array(checkpoint.tensor(name).to_float32()))
    model.load_state_dict(weights, strict=False)
    with torch.no_grad():
        expected = model(torch.tensor([plain.sequences[0][:40]])).logits[0].numpy()
    assert np.abs(result.logits - expected).max() < BOUND


@pytest.mark.parametrize("attention", PATHS)
@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 0.06), ("float16", 0.008)])
def test_16_bit_types_stay_close_to_float32(plain, attention, dtype, bound):
    """The bound is on the root mean square of the error, relative to the logits' own spread."""
    runner, view = plain.runner(attention, dtype), plain.view(dtype=dtype)
    for rows in ([plain.row(0, 0, 200), plain.row(1, 0, 3)], [plain.row(0, 200, 1), plain.row(1, 3, 60)]):
        expected = plain.expected(*rows)
        error = run(runner, view, *rows).logits - expected
        assert np.sqrt((error**2).mean()) < bound * expected.std()


def test_the_effective_settings_are_described(plain):
    described = plain.runner("gather", "bfloat16").describe()
    assert described["runner"].startswith("torch")
    assert described["attention"].startswith("gather")
    assert described["dtype"] == "bfloat16"
    assert described["threads"] == "1"
    assert "20 F32" in described["weights"]
    assert plain.runner("fused").describe()["attention"] == "fused (torch: indexed copy)"


def test_what_does_not_exist_is_refused_by_name(plain):
    with pytest.raises(ConfigError, match=r"attention is flash: fused, gather, per-request are accepted\."):
        plain.runner("flash")
    with pytest.raises(ConfigError, match=r"dtype is int8: float32, bfloat16, float16 are accepted\."):
        plain.runner(dtype="int8")
    with pytest.raises(ConfigError, match="KV cache's dtype is bfloat16"):
        run(plain.runner(), plain.view(dtype="bfloat16"), plain.row(0, 0, 1))
