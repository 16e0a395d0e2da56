"""The native runner: against transformers and float64, and bit for bit against itself however a step is put together."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys

import numpy as np
import pytest

from octavo import machine
from octavo.errors import ConfigError
from octavo.kv.arena import KVSpec
from octavo.kv.view import Move
from octavo.models.checkpoint import RawTensor
from octavo.models.config import DecoderConfig
from octavo.models.decoder import build_program
from octavo.models.kinds import BLOCKS
from octavo.models.load import open_checkpoint
from octavo.native import isa
from octavo.runner.native_runner import NativeRunner
from octavo.scheduler.plan import Logits, Row, SlotSampling, StepPlan
from tests.checkpoints import tiny_gguf, tiny_llama
from tests.placement import CONTIGUOUS, MIXED, make_view
from tests.runner.numpy_decoder import RandomCheckpoint, logits
from tests.runner.test_other_decoders import BASE, DECODERS
from tests.runner.test_torch_runner import MODELS, Model

pytestmark = pytest.mark.skipif(not isa.built(), reason="the native library is not compiled")
ISAS = [name for name in isa.built() if isa.NEEDS[name] <= machine.cpu_flags()]
# Root mean square of the error of a logit, relative to the logits' spread: activations are rounded to bfloat16, or to int8 where
# weights are quantised; keys and values to bfloat16, or to int8. docs/numerics.md states these.
BOUND = 0.03
INT8_BOUND = 0.06


def native(checkpoint, *, slots=8, length=400, tokens=512, threads=2, attention="fused", **settings) -> NativeRunner:
    runner = NativeRunner(
        build_program(checkpoint.config), checkpoint, dtype="bfloat16", attention=attention, threads=threads, slots=slots,
        max_model_len=length, max_batched_tokens=tokens, **settings,
    )  # fmt: skip
    runner.keep_logits = True
    return runner


def arena(config: DecoderConfig, block=16, *, slots=8, length=340, dtype="bfloat16"):
    return make_view(KVSpec(config.layers, config.kv_heads, config.head_dim, dtype), slots, length, block)


def run(runner, view, *rows, opened=()):
    return runner.execute(StepPlan(0, rows, opened), view)


def close(found, expected, bound=BOUND) -> bool:
    return np.sqrt(((found - expected) ** 2).mean()) < bound * expected.std()


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    """Weights that are bfloat16 in the file already: what differs from float32 is the computing."""
    return Model(tmp_path_factory.mktemp("model"), dtype="bfloat16", **MODELS[request.param])


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return Model(tmp_path_factory.mktemp("model"), dtype="bfloat16")


# ---- against oracles


def test_prefill_decode_and_both_at_once(model):
    """A sequence is prefilled whole, one in chunks, one token by token; each step's logits are transformers'."""
    runner, view = native(model.checkpoint), arena(model.config)
    row = model.row
    steps = [
        [row(0, 0, 300)],
        [row(1, 0, 17), row(2, 0, 1)],
        [row(2, 1, 1), row(0, 300, 1), row(1, 17, 100)],
        [row(1, 117, 120), row(2, 2, 1), row(0, 301, 1), row(3, 0, 90)],
        [row(0, 302, 1), row(2, 3, 1), row(1, 237, 2), row(3, 90, 90, Logits.LAST)],
        *([row(s, start + i, 1) for s, start in enumerate((303, 239, 4, 180))] for i in range(4)),
    ]
    for rows in steps:
        assert close(run(runner, view, *rows).logits, model.expected(*rows))


@pytest.mark.parametrize("decoder", DECODERS)
def test_what_llama_does_not_have(decoder):
    """Windows, soft caps, query/key norms, sandwich norms, widths that are no multiple of 32, against float64."""
    config = dataclasses.replace(BASE, **DECODERS[decoder])
    checkpoint, program = RandomCheckpoint(config), build_program(config)
    for name, array in checkpoint.weights.items():
        if array.ndim == 2:
            checkpoint.weights[name] = (array.view(np.uint32) & 0xFFFF0000).view(np.float32)  # a bfloat16
    runner, view = native(checkpoint, slots=3, length=130), arena(config, 8, slots=3, length=130)
    sequences = np.random.default_rng(1).integers(0, config.vocab, (3, 130)).tolist()
    expected = [logits(program, checkpoint.weights, tokens) for tokens in sequences]
    for spans in ([(0, 100), (0, 30), (0, 1)], [(100, 9), (30, 1), (1, 2)], [(109, 1), (31, 90), (3, 1)]):
        rows = [Row(i, s, n, sequences[i][s : s + n], Logits.ALL) for i, (s, n) in enumerate(spans)]
        assert close(run(runner, view, *rows).logits, np.concatenate([expected[i][s : s + n] for i, (s, n) in enumerate(spans)]))


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_quantised_weights_are_multiplied_as_they_are(plain, tmp_path, kind):
    checkpoint = open_checkpoint(str(tiny_gguf(tmp_path / "tiny.gguf", plain.folder, kind=kind)))
    runner = native(checkpoint)
    assert kind in ("F32", "F16") or f"{kind} (file" in runner.describe()["weights"]
    weights = {name: checkpoint.tensor(name).to_float32() for name in build_program(checkpoint.config).weight_names()}
    expected = logits(build_program(checkpoint.config), weights, plain.sequences[0][:90])
    found = run(runner, arena(plain.config), plain.row(0, 0, 90)).logits
    assert close(found, expected, INT8_BOUND if kind.startswith("Q") else BOUND)


class BlockCheckpoint(RandomCheckpoint):
    """Matrices of random blocks of one of GGUF's types."""

    SCALES = {"Q4_K": (0, 2), "Q6_K": (208,), "Q5_K": (0, 2), "Q3_K": (108,), "Q5_0": (0,), "IQ4_NL": (0,)}  # noqa: RUF012

    def __init__(self, config: DecoderConfig, kind: str):
        super().__init__(config)
        random = np.random.default_rng(2)
        values, size = BLOCKS[kind]
        self.raws = {}
        for name, array in self.weights.items():
            if array.ndim == 2:
                blocks = random.integers(0, 256, (array.shape[0], array.shape[1] // values, size), np.uint8)
                for field in self.SCALES[kind]:
                    spread = {"Q5_0": 0.01, "IQ4_NL": 1e-3}.get(kind, 1e-4)
                    scales = random.normal(0, spread, blocks.shape[:2]).astype(np.float16)
                    blocks[:, :, field : field + 2] = scales[..., None].view(np.uint8)
                self.raws[name] = RawTensor(kind, array.shape, blocks.reshape(array.shape[0], -1))

    def tensor(self, name):
        return self.raws[name] if name in self.raws else super().tensor(name)


@pytest.mark.parametrize(
    ("kind", "held"),
    [
        ("Q4_K", "15 Q4_K"),
        ("Q6_K", "15 Q6_K"),
        *((k, f"15 BF16; widened to BF16: 15 {k}") for k in ("Q5_K", "Q3_K", "Q5_0", "IQ4_NL")),
    ],
)
def test_blocks_of_256_and_types_that_are_widened(kind, held):
    config = dataclasses.replace(BASE, hidden=256, intermediate=512, heads=16, kv_heads=4, activation="gelu_tanh")
    checkpoint, program = BlockCheckpoint(config, kind), build_program(config)
    weights = {name: checkpoint.tensor(name).to_float32() for name in program.weight_names()}
    tokens = np.random.default_rng(3).integers(0, config.vocab, 70).tolist()
    runner = native(checkpoint)
    assert f"{held} (file" in runner.describe()["weights"]
    found = run(runner, arena(config), Row(0, 0, 70, tokens, Logits.ALL)).logits
    assert close(found, logits(program, weights, tokens), INT8_BOUND if kind in ("Q4_K", "Q6_K") else BOUND)


def test_a_mixture_of_element_types_in_one_layer(tmp_path):
    """Parts of one operation (query, key and value; gate and up) that cannot be multiplied as one."""
    folder = tiny_llama(tmp_path / "model", dtype="bfloat16")
    files = [open_checkpoint(str(tiny_gguf(tmp_path / f"{kind}.gguf", folder, kind=kind))) for kind in ("Q8_0", "Q4_0", "BF16")]
    picked = {"q": 0, "k": 1, "v": 2, "gate": 1, "up": 0, "o": 0, "down": 2, "embed": 0}

    class Mixture(type(files[0])):
        def __init__(self):
            self.path, self.config = "mixture", files[0].config

        def tensor(self, name):
            return files[picked.get(name.rpartition(".")[2], 0)].tensor(name)

        def weight_kinds(self):
            return {}

        def drop_pages(self):
            pass

    checkpoint = Mixture()
    weights = {name: checkpoint.tensor(name).to_float32() for name in build_program(checkpoint.config).weight_names()}
    tokens = np.random.default_rng(3).integers(3, checkpoint.config.vocab, 60).tolist()
    found = run(native(checkpoint), arena(checkpoint.config), Row(0, 0, 60, tokens, Logits.ALL)).logits
    assert close(found, logits(build_program(checkpoint.config), weights, tokens), INT8_BOUND)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("kind", ["BF16", "Q8_0", "Q4_0"])
def test_every_instruction_set_of_this_machine(plain, tmp_path, monkeypatch, name, kind):
    checkpoint = open_checkpoint(str(tiny_gguf(tmp_path / "tiny.gguf", plain.folder, kind=kind)))
    monkeypatch.setenv(isa.VARIABLE, name)
    runner, view = native(checkpoint), arena(plain.config)
    assert f"native ({name})" in runner.describe()["runner"]
    weights = {name: checkpoint.tensor(name).to_float32() for name in build_program(checkpoint.config).weight_names()}
    expected = logits(build_program(checkpoint.config), weights, plain.sequences[0][:140])
    parts = [run(runner, view, plain.row(0, s, n)).logits for s, n in ((0, 100), (100, 39), (139, 1))]
    assert close(np.concatenate(parts), expected, INT8_BOUND if kind.startswith("Q") else BOUND)


def test_keys_and_values_in_int8(plain):
    runner, view = native(plain.checkpoint, kv_dtype="int8"), arena(plain.config, dtype="int8")
    for rows in ([plain.row(0, 0, 200), plain.row(1, 0, 3)], [plain.row(0, 200, 1), plain.row(1, 3, 60)]):
        assert close(run(runner, view, *rows).logits, plain.expected(*rows), INT8_BOUND)


# ---- bit for bit


@pytest.fixture(scope="module", params=["BF16", "Q4_1"])
def subject(request, plain, tmp_path_factory):
    """A checkpoint, its runner with 32 slots, sequences, and each one's logits computed alone, in one go and one layout."""
    file = tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", plain.folder, kind=request.param)
    checkpoint = open_checkpoint(str(file))
    runner = native(checkpoint, slots=32, tokens=2048)
    random = np.random.default_rng(7)
    sequences = [random.integers(3, plain.config.vocab, n).tolist() for n in [330, 200, 129, 64, *range(1, 29)]]
    alone = []
    for tokens in sequences:
        view = arena(plain.config, CONTIGUOUS, slots=32)
        alone.append(run(runner, view, Row(0, 0, len(tokens), tokens, Logits.ALL)).logits)
    return runner, sequences, alone


def replay(runner, view, sequences, alone, chunk):
    """All sequences at once, ``chunk(i, done)`` tokens of sequence i a step: every logit must have the bits it had alone."""
    done = [0] * len(sequences)
    while any(d < len(tokens) for d, tokens in zip(done, sequences, strict=True)):
        rows = []
        for i, tokens in enumerate(sequences):
            if length := min(chunk(i, done[i]), len(tokens) - done[i]):
                rows.append(Row(i, done[i], length, tokens[done[i] : done[i] + length], Logits.ALL))
        found = run(runner, view, *rows).logits
        want = np.concatenate([alone[row.slot][row.start : row.start + row.length] for row in rows])
        assert np.array_equal(found, want)
        for row in rows:
            done[row.slot] += row.length


@pytest.mark.parametrize("block", [CONTIGUOUS, MIXED, 1, 8, 64])
def test_logits_depend_on_the_sequences_own_tokens_alone(subject, plain, block):
    runner, sequences, alone = subject
    chunks = {CONTIGUOUS: lambda i, d: 330, MIXED: lambda i, d: 1 + (i * 7 + d) % 50, 1: lambda i, d: 100, 8: lambda i, d: 37}
    replay(runner, arena(plain.config, block, slots=32), sequences, alone, chunks.get(block, lambda i, d: 13 if i % 2 else 1))


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_do_not_change_a_bit(plain, threads):
    rows = [plain.row(s, 0, 100 + s) for s in range(4)]
    found = [run(native(plain.checkpoint, threads=n), arena(plain.config), *rows).logits for n in (2, threads)]
    assert np.array_equal(*found)


def test_one_call_per_operation_gives_the_same_bits(plain):
    results = []
    for eager in (False, True):
        runner, view = native(plain.checkpoint, eager=eager), arena(plain.config)
        opened = tuple(SlotSampling(s, 0.8 * s, 1.0, 0, 5, 0) for s in range(2))
        first = run(runner, view, plain.row(0, 0, 50), plain.row(1, 0, 9, Logits.LAST), opened=opened)
        second = run(runner, view, Row(0, 50, 1, None, Logits.LAST), Row(1, 9, 1, None, Logits.LAST))
        results.append((first, second))
    for whole, single in zip(*results, strict=True):
        assert np.array_equal(whole.logits, single.logits)
        assert whole.tokens.tolist() == single.tokens.tolist()
        assert whole.launches == 1
        assert single.launches > 2 * 7  # two layers of at least seven operations


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
def test_attention_per_request_gives_the_same_bits(plain, kv_dtype, eager):
    """Long rows, whose tiles are spread over threads, beside short ones; several queries; one runner called either way."""
    sequences = np.random.default_rng(5).integers(3, 250, (3, 1000)).tolist()

    def row(slot, start, length):
        return Row(slot, start, length, sequences[slot][start : start + length], Logits.ALL)

    steps = [
        [row(0, 0, 980), row(1, 0, 7)],
        [row(0, 980, 1), row(1, 7, 1), row(2, 0, 1)],
        [row(0, 981, 5), row(1, 8, 70), row(2, 1, 1)],
    ]
    runner = native(plain.checkpoint, slots=3, length=1000, tokens=1024, kv_dtype=kv_dtype)
    results = []
    for attention in ("fused", "per-request"):
        runner.call_by(attention, eager)
        view = arena(plain.config, slots=3, length=1000, dtype=kv_dtype)
        results.append([run(runner, view, *rows) for rows in steps])
    for together, apart in zip(*results, strict=True):
        assert np.array_equal(together.logits, apart.logits)
        assert together.tokens.tolist() == apart.tokens.tolist()


def test_attention_per_request_with_windows():
    """Layers whose windows differ cut their work differently, for each row apart, too."""
    config = dataclasses.replace(BASE, windows=(5, None))
    checkpoint = RandomCheckpoint(config)
    tokens = np.random.default_rng(6).integers(0, config.vocab, 130).tolist()
    found = []
    for attention in ("fused", "per-request"):
        runner, view = native(checkpoint, slots=2, length=130, attention=attention), arena(config, 8, slots=2, length=130)
        first = run(runner, view, Row(0, 0, 100, tokens[:100], Logits.ALL), Row(1, 0, 3, tokens[:3], Logits.ALL))
        second = run(runner, view, Row(0, 100, 30, tokens[100:], Logits.ALL), Row(1, 3, 1, tokens[3:4], Logits.ALL))
        found.append(np.concatenate([first.logits, second.logits]))
    assert np.array_equal(*found)


# ---- a step


def test_logits_come_for_the_rows_that_want_them_in_the_plans_order(plain):
    runner, view = native(plain.checkpoint), arena(plain.config)
    rows = [
        plain.row(0, 0, 40, Logits.LAST),
        plain.row(1, 0, 20, Logits.NONE),
        plain.row(2, 0, 1, Logits.LAST),
        plain.row(3, 0, 150, Logits.ALL),
    ]
    result = run(runner, view, *rows)
    assert result.logits.shape == (152, plain.config.vocab)
    assert close(result.logits, plain.expected(*rows))
    assert result.tokens.dtype == np.int32
    assert result.tokens.tolist() == result.logits[[0, 1, 151]].argmax(-1).tolist()
    nothing = run(runner, view, plain.row(1, 20, 20, Logits.NONE))
    assert nothing.tokens.tolist() == []
    assert nothing.logits is None
    runner.keep_logits = False
    without = run(runner, view, plain.row(2, 1, 1), plain.row(3, 150, 3, Logits.ALL))
    assert without.logits is None
    runner.keep_logits = True
    again = run(runner, view, plain.row(2, 1, 1), plain.row(3, 150, 3, Logits.ALL))
    assert without.tokens.tolist() == again.tokens.tolist() == again.logits[[0, 3]].argmax(-1).tolist()


def test_a_row_without_tokens_continues_what_its_slot_sampled(plain):
    """The tokens never pass through the caller: the same as if they had."""
    runner, view = native(plain.checkpoint), arena(plain.config)
    opened = tuple(SlotSampling(slot, 0.0, 1.0, 0, 0, 0) for slot in range(3))
    lengths = [30, 7, 55]
    last = run(runner, view, *(plain.row(s, 0, n, Logits.LAST) for s, n in enumerate(lengths)), opened=opened).tokens
    other = arena(plain.config, CONTIGUOUS)
    run(runner, other, *(plain.row(s, 0, n, Logits.NONE) for s, n in enumerate(lengths)))
    for step in range(8):
        rows = [Row(slot, n + step, 1, None, Logits.LAST) for slot, n in enumerate(lengths)]
        stated = [Row(slot, n + step, 1, [int(last[slot])], Logits.LAST) for slot, n in enumerate(lengths)]
        implicit = run(runner, view, *rows[::-1])
        explicit = run(runner, other, *stated[::-1])
        assert np.array_equal(implicit.logits, explicit.logits)
        last = implicit.tokens[::-1]


def test_moves_are_carried_out_in_order_before_the_step(plain):
    """A sequence's blocks are moved between steps, one of them by less than its own length, as a compaction slides a run."""
    runner, view = native(plain.checkpoint), arena(plain.config, CONTIGUOUS)
    run(runner, view, plain.row(0, 0, 100))
    here, free = int(view.table[0, 0]), int(view.table[5, 0])
    moved = dataclasses.replace(
        view, table=view.table.copy(), moves=(Move(here, free, 100), Move(free, free + 7, 100), Move(free + 7, free + 4, 100))
    )
    moved.table[0, 0] = free + 4
    row = plain.row(0, 100, 1)
    assert close(run(runner, moved, row).logits, plain.expected(row))


def test_a_plan_without_rows(plain):
    result = native(plain.checkpoint).execute(StepPlan(0, ()), arena(plain.config))
    assert result.tokens.tolist() == []


def test_how_busy_the_threads_were(plain):
    runner = native(plain.checkpoint)
    run(runner, arena(plain.config), plain.row(0, 0, 300))
    assert 0 < runner.utilisation <= 1
    spent = runner.operation_seconds()
    assert {"embed", "head", "layers.0.attention"} < spent.keys()
    assert all(seconds >= 0 for seconds in spent.values())


def test_a_batch_that_cannot_be_is_refused_and_changes_nothing(plain):
    runner, view = native(plain.checkpoint, tokens=32), arena(plain.config)
    first = run(runner, view, plain.row(0, 0, 20))
    for row, words in [
        (Row(0, 20, 1, [plain.config.vocab], Logits.LAST), "vocabulary"),
        (Row(0, 20, 1, [-1], Logits.LAST), "vocabulary"),
        (Row(8, 0, 1, [1], Logits.LAST), "slot"),
        (Row(0, 400, 1, [1], Logits.LAST), "positions"),
        (Row(0, 20, 33, [1] * 33, Logits.LAST), "buffers"),
        (Row(0, 20, 2, [1], Logits.LAST), "token id"),
        (Row(0, 360, 1, [1], Logits.LAST), "runs"),
    ]:
        with pytest.raises(RuntimeError, match=words):
            run(runner, view, row)
    again = run(runner, view, plain.row(0, 0, 20))
    assert np.array_equal(first.logits, again.logits)


# ---- what is refused, and what is said


def test_the_effective_settings_are_described(plain):
    described = native(plain.checkpoint).describe()
    assert described["runner"].startswith("native (")
    assert described["attention"].startswith("fused")
    assert described["threads"].startswith("2")
    assert "20 BF16" in described["weights"]
    assert "one call per operation" in native(plain.checkpoint, eager=True).describe()["runner"]
    apart = native(plain.checkpoint, attention="per-request").describe()
    assert apart["attention"].startswith("per-request")
    assert "one call per piece of a step between attentions" in apart["runner"]


def test_what_the_native_runner_does_not_have_is_refused_by_name(plain):
    make = functools.partial(
        NativeRunner, build_program(plain.config), plain.checkpoint, threads=1, slots=1, max_model_len=9, max_batched_tokens=9
    )
    with pytest.raises(ConfigError, match="dtype is float32"):
        make(dtype="float32", attention="fused")
    with pytest.raises(ConfigError, match="attention is gather"):
        make(dtype="bfloat16", attention="gather")
    with pytest.raises(ConfigError, match="kv_cache_dtype is int4: bfloat16, int8 are accepted"):
        make(dtype="bfloat16", attention="fused", kv_dtype="int4")
    config = dataclasses.replace(BASE, activation="relu")
    with pytest.raises(ConfigError, match="activation relu"):
        native(RandomCheckpoint(config))
    with pytest.raises(ConfigError, match="head_dim"):
        native(RandomCheckpoint(dataclasses.replace(BASE, head_dim=24, rope=dataclasses.replace(BASE.rope, dim=24))))
    with pytest.raises(ConfigError, match="KV cache's dtype is int8: bfloat16 is accepted"):
        run(native(plain.checkpoint), arena(plain.config, dtype="int8"), plain.row(0, 0, 1))


def test_torch_is_never_imported(plain):
    code = (
        "import sys; from octavo import LLM, SamplingParams; "
        f"llm = LLM({str(plain.folder)!r}, runner='native', max_model_len=64, kv_memory='8MiB'); "
        "out = llm.generate([{'prompt_token_ids': [5, 6, 7]}], SamplingParams(max_tokens=4, temperature=0.7), use_tqdm=False); "
        "assert len(out[0].outputs[0].token_ids) == 4; assert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
