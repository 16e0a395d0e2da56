"""The offline API: prompts of every kind, errors in words, several streams at once, nothing left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, ConfigError, RequestError, SamplingParams
from octavo.native import isa
from tests.checkpoints import tiny_gguf, tiny_llama

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder: Path = tiny_llama(tmp_path_factory.mktemp("llm"))
    return LLM(model=folder, dtype="float32", threads=1, kv_memory="4MiB", max_model_len=128, max_num_seqs=8)


def test_text_and_token_ids_are_the_same_prompt(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("hello there")
    kinds: list[Any] = ["hello there", {"prompt": "hello there"}, {"prompt_token_ids": ids}]
    outputs = llm.generate(kinds, GREEDY, use_tqdm=False)
    assert [o.prompt for o in outputs] == ["hello there", "hello there", None]
    assert len({tuple(o.outputs[0].token_ids) for o in outputs}) == 1
    one = outputs[0]
    assert one.prompt_token_ids == ids
    assert (one.finished, one.outputs[0].finish_reason, len(one.outputs[0].token_ids)) == (True, "length", 12)
    assert one.outputs[0].text == llm.get_tokenizer().decode(one.outputs[0].token_ids)
    assert one.metrics.arrival <= one.metrics.scheduled <= one.metrics.first_token <= one.metrics.finished


def test_params_for_each_prompt(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, 5, 9)]
    assert [len(o.outputs[0].token_ids) for o in llm.generate(["a", "b", "c"], params, use_tqdm=False)] == [1, 5, 9]
    assert llm.generate([], use_tqdm=False) == []


def test_a_stop_string_ends_the_text_before_it(llm: LLM) -> None:
    text = llm.generate("hello", GREEDY, use_tqdm=False)[0].outputs[0].text
    stop = text[5:7]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=[stop])
    output = llm.generate("hello", params, use_tqdm=False)[0].outputs[0]
    assert output.text == text[: text.index(stop)]
    assert (output.finish_reason, output.stop_reason) == ("stop", stop)
    assert llm.core.stats().kv_reserved == 0
    assert llm.core.scheduler.expectation.mean < 13  # it counts among the outputs that were seen


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m.generate(None), "prompts is None"),
        (lambda m: m.generate(5), "prompts is 5"),
        (lambda m: m.generate([5]), "a prompt is 5"),
        (lambda m: m.generate([{"text": "a"}]), "a prompt is"),
        (lambda m: m.generate([{"prompt_token_ids": ["a"]}]), "no list of integers"),
        (lambda m: m.generate("a", 5), "sampling_params is 5"),
        (lambda m: m.generate(["a", "b"], []), "0 entries for 2 prompts"),
        (lambda m: m.generate("a", priority=[1.5]), "priority is"),
        (lambda m: m.generate({"prompt_token_ids": []}), "empty"),
        (lambda m: m.generate({"prompt_token_ids": [10**6]}), "token id outside"),
        (lambda m: m.generate("a" * 400), "at most 128"),
        (lambda m: m.generate("a", SamplingParams(stop_token_ids=[10**6])), "stop_token_ids holds an id outside"),
        (lambda m: m.chat([]), "messages is"),
        (lambda m: m.chat({"role": "user"}), "messages is"),
        (lambda m: m.chat(None), "messages is"),
    ],
)
def test_wrong_calls_are_refused_in_words_and_leave_nothing(llm: LLM, call: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        call(llm)
    assert not llm.core.has_work


def test_one_bad_prompt_refuses_all_before_anything_is_computed(llm: LLM) -> None:
    steps = llm.core.stats().steps
    with pytest.raises(RequestError):
        llm.generate(["fine", "a" * 400], use_tqdm=False)
    assert llm.core.stats().steps == steps
    assert not llm.core.has_work


def test_two_streams_and_a_generate_at_once(llm: LLM) -> None:
    alone = [llm.generate(p, GREEDY, use_tqdm=False)[0].outputs[0].token_ids for p in ("one", "two", "three")]
    first, second = llm.stream("one", GREEDY), llm.stream("two", GREEDY)
    next(first)
    next(second)
    third = llm.generate("three", GREEDY, use_tqdm=False)[0]
    *_, one = first
    *_, two = second
    assert [o.outputs[0].token_ids for o in (one, two, third)] == alone


def test_leaving_a_stream_aborts_it(llm: LLM) -> None:
    stream = llm.stream("one", GREEDY)
    next(stream)
    assert llm.core.has_work
    stream.close()
    assert not llm.core.has_work
    llm.core.check()


def test_an_interrupt_leaves_the_llm_usable(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = llm.generate("hello", GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    execute, calls = llm.core.runner.execute, []

    def interrupted(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return execute(*args)

    monkeypatch.setattr(llm.core.runner, "execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["hello", "you"], GREEDY, use_tqdm=False)
    assert not llm.core.has_work
    assert llm.generate("hello", GREEDY, use_tqdm=False)[0].outputs[0].token_ids == expected
    llm.core.check()


def test_chat_renders_the_template(llm: LLM) -> None:
    output = llm.chat([{"role": "user", "content": "hi"}], GREEDY, use_tqdm=False)[0]
    text = llm.get_tokenizer().decode(output.prompt_token_ids, skip_special_tokens=False)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kv_memory": 1024}, "kv_memory is 1 KiB, which holds 4 tokens of 256 bytes: a request needs at least 16"),
        ({"kv_memory": "16KiB", "max_model_len": 128}, "holds a sequence of at most 64 tokens.*give 32 KiB"),
        ({"kv_memory": 2**59}, "kv_memory is .* this process may use"),
        ({"max_model_len": 4096}, "at most 1024 is accepted, the context of this model"),
        ({"runner": "native", "attention": "gather"}, "attention=gather exists on the torch runner only"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size is no setting"),
    ],
)
def test_settings_that_do_not_fit_the_model_are_refused(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    folder = tiny_llama(tmp_path / "m", hidden_size=32, num_attention_heads=2, num_key_value_heads=1)
    if "kv_memory" in settings and settings["kv_memory"] != 2**59:
        settings = {**settings, "dtype": "float32"}
    with pytest.raises(ConfigError, match=words):
        LLM(model=folder, threads=1, **settings)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"n": 2}, "n is 2: not supported yet; leave it out, or at 1"),
        ({"presence_penalty": 0.5}, "presence_penalty is 0.5: not supported yet"),
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0}, "top_p is 0"),
        ({"top_k": -2}, "top_k is -2"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"stop": 5}, "stop is 5"),
        ({"stop": [""]}, "empty string"),
        ({"stop": ["x"] * 17}, "at most 16"),
        ({"stop_token_ids": 5}, "stop_token_ids is 5"),
        ({"stop_token_ids": list(range(2000))}, "2000 ids: a list of at most 1024"),
        ({"ignore_eos": 5}, "ignore_eos is 5"),
        ({"seed": "x"}, "seed is 'x'"),
    ],
)
def test_sampling_params_are_checked(params: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        SamplingParams(**params)
    assert caught.value.param == next(iter(params))


@pytest.mark.skipif(not isa.built(), reason="the native library is not compiled")
def test_quantised_weights_are_kept_or_widened_as_asked(tmp_path: Path) -> None:
    file = tiny_gguf(tmp_path / "tiny.gguf", tiny_llama(tmp_path / "m"), kind="Q8_0")
    lines = {}
    for setting in (None, "int8", "bfloat16"):
        llm = LLM(model=file, quantized_matmul=setting, threads=1, kv_memory="1MiB", runner="native")
        lines[setting] = llm.core.effective["weights"]
    assert lines[None] == lines["int8"]
    assert "widened" not in lines["int8"]
    assert "widened to BF16" in lines["bfloat16"]
    with pytest.raises(ConfigError, match="quantized_matmul is int8, but the torch runner"):
        LLM(model=file, quantized_matmul="int8", runner="torch")
    with pytest.raises(ConfigError, match="quantized_matmul is bfloat16, but the torch runner"):
        LLM(model=file, quantized_matmul="bfloat16", dtype="float32")
    plain = tiny_llama(tmp_path / "plain", dtype="bfloat16")
    with pytest.raises(ConfigError, match=r"quantized_matmul is int8, but .* has no weights of type Q4_0"):
        LLM(model=plain, quantized_matmul="int8", threads=1, kv_memory="1MiB")


def test_vllms_defaults_are_accepted() -> None:
    SamplingParams(n=1, presence_penalty=0.0, repetition_penalty=1.0, min_p=0.0, logprobs=None, top_k=-1, stop=None)
