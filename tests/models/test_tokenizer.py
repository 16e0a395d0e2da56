"""Tokenizers: from tokenizer.json, and from what a GGUF file's metadata says."""

import threading
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, pre_tokenizers

from octavo.errors import ModelError, RequestError
from octavo.models.fields import Fields
from octavo.models.gguf_tokenizer import build_tokenizer, special_token_strings
from octavo.models.safetensors import HFCheckpoint
from octavo.models.tokenizer import Tokenizer, read_tokenizer
from tests.checkpoints import MERGES, SPECIAL_TOKENS, byte_tokenizer, tiny_llama, write_json, write_tokenizer

BYTES = sorted(byte_tokenizer().pre_tokenizer.alphabet())
TEXTS = st.text(max_size=60) | st.text(alphabet=" \n'ab12é🎉…<|im_end|>", max_size=60)
RARE = st.text(alphabet=st.characters(codec="utf-8"), max_size=40)


def byte_level(pre="gpt-2", merges=(), extra=(), types=None, stated=None, **more):
    """A byte-level GGUF vocabulary: <bos>, <eos>, the 256 bytes, what the merges make, and ``extra``. ``stated`` and ``more``
    replace entries; None leaves one out."""
    tokens = ["<bos>", "<eos>", *BYTES, *(merge.replace(" ", "") for merge in merges), *extra]
    values = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": tuple((types or {}).get(token, 3 if i < 2 else 1) for i, token in enumerate(tokens)),
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        **{f"tokenizer.ggml.{key}": value for key, value in {**(stated or {}), **more}.items()},
    }
    return Fields("model.gguf", {key: value for key, value in values.items() if value is not None})


def pieces(tokenizer: Tokenizer, text: str, **how) -> list[str]:
    return [tokenizer.token(i) for i in tokenizer.encode(text, **how)]


DIGITS = ["Ġ 1", "Ġ1 2", "1 2", "12 3", "123 4", "a b", "Ġ ab"]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        # GPT-2: a space belongs to the word after it; digits stay together
        ("gpt-2", "ab 1234", ["ab", "Ġ12", "3", "4"]),
        ("gpt-2", "ab12", ["ab", "12"]),
        # smollm: every digit alone, so that no space can join it
        ("smollm", "ab 1234 ab", ["ab", "Ġ", "1", "2", "3", "4", "Ġab"]),
        ("smollm", "ab12", ["ab", "1", "2"]),
        # llama 3: at most three digits, and no space before them
        ("llama-bpe", "ab 1234", ["ab", "Ġ", "123", "4"]),
        ("llama3", "ab1234", ["ab", "123", "4"]),
        # the default of llama.cpp: digits apart from the space before them, then in threes
        ("default", "ab 1234", ["ab", "Ġ", "123", "4"]),
    ],
)
def test_digits(pre, text, expected):
    tokenizer = build_tokenizer(byte_level(pre, DIGITS))
    assert pieces(tokenizer, text, add_special_tokens=False) == expected


CONTRACTIONS = ["' s", "' S", "Ġ Ġ", "Ċ Ċ", "ĠĠ a", "! !", "! Ċ", "Ġ !"]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "a's", ["a", "'s"]),
        ("gpt-2", "a'S", ["a", "'", "S"]),
        ("llama3", "a'S", ["a", "'S"]),
        ("gpt-2", "a   b", ["a", "ĠĠ", "Ġ", "b"]),  # the last space goes with the word
        ("gpt-2", "a\n\n!!", ["a", "Ċ", "Ċ", "!!"]),  # a last line end stands alone as a last space would
        ("llama3", "a\n\n!!", ["a", "ĊĊ", "!!"]),
        ("llama3", "!\n", ["!Ċ"]),  # line ends go with punctuation before them
        ("gpt-2", "!\n", ["!", "Ċ"]),
        ("default", "a !", ["a", "Ġ", "!"]),  # punctuation apart from the space before it
        ("gpt-2", "a !", ["a", "Ġ!"]),
    ],
)
def test_words(pre, text, expected):
    assert pieces(build_tokenizer(byte_level(pre, CONTRACTIONS)), text, add_special_tokens=False) == expected


def test_llama3_takes_a_whole_word_where_merges_do_not_lead_to_it():
    extra = ["abc"]
    assert pieces(build_tokenizer(byte_level("llama-bpe", extra=extra)), "abc", add_special_tokens=False) == ["abc"]
    assert pieces(build_tokenizer(byte_level("gpt-2", extra=extra)), "abc") == ["a", "b", "c"]


def test_beginning_and_end_tokens():
    assert pieces(build_tokenizer(byte_level("gpt-2")), "a") == ["a"]
    assert pieces(build_tokenizer(byte_level("llama-bpe")), "a") == ["<bos>", "a"]
    assert pieces(build_tokenizer(byte_level("llama-bpe", add_bos_token=False)), "a") == ["a"]
    both = build_tokenizer(byte_level("gpt-2", add_bos_token=True, add_eos_token=True))
    assert pieces(both, "a") == ["<bos>", "a", "<eos>"]
    assert pieces(both, "a", add_special_tokens=False) == ["a"]
    assert pieces(both, "") == ["<bos>", "<eos>"]
    assert both.bos_token_id == 0
    with pytest.raises(ModelError, match=r"asks for a bos token.*bos_token_id"):
        build_tokenizer(byte_level("gpt-2", add_bos_token=True, bos_token_id=None))


def test_control_and_user_defined_tokens():
    tokenizer = build_tokenizer(byte_level(extra=["<|turn|>", "<tool>"], types={"<|turn|>": 3, "<tool>": 4}))
    ids = tokenizer.encode("a<|turn|>b<tool>c")
    assert [tokenizer.token(i) for i in ids] == ["a", "<|turn|>", "b", "<tool>", "c"]
    assert tokenizer.decode(ids) == "ab<tool>c"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<|turn|>b<tool>c"
    assert tokenizer.special_ids == {0, 1, 258}
    assert tokenizer.vocab_size == 260


def test_added_tokens_keep_characters_that_are_no_byte_letters():
    token = "<…user name…>"
    tokenizer = build_tokenizer(byte_level(extra=[token], types={token: 4}))
    assert pieces(tokenizer, f"a{token}b") == ["a", token, "b"]
    assert tokenizer.decode(tokenizer.encode(f"a{token}b")) == f"a{token}b"


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "default"])
@given(text=TEXTS | RARE)
def test_byte_level_round_trip(pre, text):
    tokenizer = ROUND_TRIP[pre]
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False) == text


GPT2 = byte_tokenizer()
ROUND_TRIP = {pre: build_tokenizer(byte_level(pre, MERGES)) for pre in ("gpt-2", "smollm", "llama-bpe", "default")}


@given(text=TEXTS | RARE)
def test_gpt2_words_are_the_librarys(text):
    """The library's own GPT-2 pre-tokenizer, with the same merges."""
    tokens = GPT2.encode(text).tokens
    if not any(token in SPECIAL_TOKENS for token in tokens):
        assert pieces(ROUND_TRIP["gpt-2"], text) == tokens


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"model": "bert"}, "ggml.model is 'bert': 'gpt2' or 'llama'"),
        ({"model": None}, "does not state tokenizer.ggml.model"),
        ({"pre": "tekken"}, "ggml.pre is 'tekken': 'default', 'gpt-2', 'smollm', 'llama-bpe', 'llama3'"),
        ({"pre": None}, "does not state tokenizer.ggml.pre"),
        ({"merges": None}, "does not state tokenizer.ggml.merges"),
        ({"merges": ["ab"]}, "merges holds 'ab': two tokens"),
        ({"merges": ["q zz"]}, "contradict each other"),
        ({"tokens": None}, "does not state tokenizer.ggml.tokens"),
        ({"tokens": ["a", "a"]}, "holds a token twice"),
        ({"token_type": (1, 2)}, "token_type does not hold 258 numbers"),
        ({"bos_token_id": 258}, "bos_token_id is 258: an integer from 0 to 257"),
        ({"add_bos_token": 1}, "add_bos_token is 1: true or false"),
    ],
)
def test_what_a_gguf_tokenizer_cannot_be(stated, message):
    with pytest.raises(ModelError, match=message) as error:
        build_tokenizer(byte_level(stated=stated))
    assert "model.gguf" in str(error.value)


def test_special_token_strings_for_templates():
    assert special_token_strings(byte_level(padding_token_id=1)) == {
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<eos>",
    }


# SentencePiece

PIECES = ["▁", "a", "b", "c", "é", "▁a", "ab", "abc", "▁abc", "bc", "▁▁", "▁▁▁▁", "ca", "cab", "aa", "aaa", "▁b", "bb"]


def sentencepiece(scored=PIECES, **stated):
    """<unk>, <s>, </s>, 256 byte tokens, then the pieces: the earlier, the higher their score."""
    control = ["<unk>", "<s>", "</s>"]
    tokens = [*control, *(f"<0x{byte:02X}>" for byte in range(256)), *scored]
    values = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": (2, 3, 3, *[6] * 256, *[1] * len(scored)),
        "tokenizer.ggml.scores": (0.0,) * 259 + tuple(-float(i) for i in range(len(scored))),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **{f"tokenizer.ggml.{key}": value for key, value in stated.items()},
    }
    return Fields("model.gguf", values)


def by_scores(text: str, scored: list[str]) -> list[str]:
    """SentencePiece as defined: while two neighbours form a piece, merge those of the best score, leftmost first."""
    symbols = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        pairs = [(scored.index(a + b), i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in scored]
        if not pairs:
            break
        i = min(pairs)[1]
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    found = []
    for symbol in symbols:
        found += [symbol] if symbol in scored else [f"<0x{byte:02X}>" for byte in symbol.encode()]
    return found


def test_sentencepiece_by_hand():
    tokenizer = build_tokenizer(sentencepiece())
    assert pieces(tokenizer, "abc") == ["<s>", "▁abc"]
    # "ab" scores above "ca", then "abc" above "cab": taking the longest piece first would give "cab", "c".
    assert pieces(tokenizer, "cabc", add_special_tokens=False) == ["▁", "c", "abc"]
    assert pieces(tokenizer, "é🎉", add_special_tokens=False) == ["▁", "é", "<0xF0>", "<0x9F>", "<0x8E>", "<0x89>"]
    assert tokenizer.decode(tokenizer.encode("abc é🎉")) == "abc é🎉"
    assert tokenizer.special_ids == {0, 1, 2}
    bare = build_tokenizer(sentencepiece(add_space_prefix=False, add_bos_token=False))
    assert pieces(bare, "abc") == ["abc"]
    assert bare.decode(bare.encode(" abc")) == " abc"


@settings(max_examples=150)
@given(text=st.text(alphabet="aabbc é🎉", max_size=24), order=st.permutations(PIECES))
def test_sentencepiece_merges_by_score(text, order):
    tokenizer = build_tokenizer(sentencepiece(list(order), add_bos_token=False))
    assert pieces(tokenizer, text) == by_scores(text, list(order))
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("scores", [None, (0.0,), (0,) * (259 + len(PIECES))])
def test_sentencepiece_needs_scores(scores):
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.scores"):
        build_tokenizer(sentencepiece(scores=scores))


# tokenizer.json


def test_tokenizer_json(tmp_path):
    write_tokenizer(tmp_path)
    tokenizer = read_tokenizer(tmp_path / "tokenizer.json", "<|im_start|>", 0, 288)
    text = "the <|im_end|> été 🎉"
    assert tokenizer.encode(text) == byte_tokenizer().encode(text).ids
    assert (tokenizer.bos_token_id, tokenizer.vocab_size, tokenizer.special_ids) == (1, 288, {0, 1, 2})
    assert read_tokenizer(tmp_path / "tokenizer.json", None, 0, 288).bos_token_id == 0


def test_what_tokenizer_json_adds_around_a_text(tmp_path):
    from tokenizers import processors

    backend = byte_tokenizer()
    backend.post_processor = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    backend.enable_truncation(2)  # settings of its training, not of its use
    backend.enable_padding(length=9)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = read_tokenizer(tmp_path / "tokenizer.json", None, None, 288)
    assert pieces(tokenizer, "abc") == ["<|endoftext|>", "a", "b", "c"]
    assert pieces(tokenizer, "abc", add_special_tokens=False) == ["a", "b", "c"]


SHORTENED = "\u1112\u1161\u11ab e\u0304\u0301 \u212b"  # what NFC makes shorter


@pytest.mark.parametrize("normalizer", [None, "NFC"])
@given(text=TEXTS | RARE | st.text(alphabet=SHORTENED, max_size=60), times=st.integers(1, 100))
def test_a_text_has_the_least_tokens_that_its_length_tells(normalizer, text, times):
    backend = byte_tokenizer()
    backend.normalizer = normalizers.NFC() if normalizer else None
    tokenizer = Tokenizer(backend, "here", None)
    text *= times
    assert len(tokenizer.encode(text, add_special_tokens=False)) >= tokenizer.least_tokens(text)


@given(text=TEXTS | RARE, times=st.integers(1, 100))
def test_a_sentencepiece_text_has_the_least_tokens_that_its_length_tells(text, times):
    tokenizer = build_tokenizer(sentencepiece())
    assert len(tokenizer.encode(text * times)) >= tokenizer.least_tokens(text * times)


def test_the_least_tokens_come_of_the_longest_token():
    tokenizer = Tokenizer(byte_tokenizer(), "here", None)
    longest = max(map(len, SPECIAL_TOKENS))
    assert tokenizer.least_tokens("") == 0
    assert tokenizer.least_tokens("x" * 10 * longest) == 10
    assert tokenizer.least_tokens("é" * 5 * longest + "x") == 11
    backend = byte_tokenizer()
    backend.normalizer = normalizers.NFC()  # three letters of Hangul, 9 bytes, become a syllable of 3
    assert Tokenizer(backend, "here", None).least_tokens("x" * 30 * longest) == 10


@pytest.mark.parametrize("part", ["a token that takes the spaces beside it", "a normalizer", "a pre-tokenizer"])
def test_a_length_tells_nothing_where_text_may_vanish(part):
    backend = byte_tokenizer()
    if part == "a normalizer":
        backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])
    elif part == "a pre-tokenizer":
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), backend.pre_tokenizer])
    else:
        backend.add_tokens([AddedToken("<gap>", rstrip=True)])
    assert Tokenizer(backend, "here", None).least_tokens("x" * 100_000) == 0


def test_a_long_text_is_tokenised_as_a_short_one_is():
    tokenizer = build_tokenizer(byte_level("llama-bpe", DIGITS))
    bos, *line = tokenizer.encode("ab 1234\n")
    assert tokenizer.encode("ab 1234\n" * 1000) == [bos, *line * 1000]


def test_other_threads_run_while_a_long_text_is_tokenised():
    tokenizer = Tokenizer(byte_tokenizer(), "here", None)
    began, ended = threading.Event(), threading.Event()

    def work():
        began.set()
        tokenizer.encode("hello world " * 100_000)
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    began.wait()
    turns = 0
    while not ended.is_set():
        ended.wait(0.001)
        turns += 1
    thread.join()
    assert turns > 20


def test_half_a_surrogate_pair_is_the_requests_error():
    with pytest.raises(RequestError, match="surrogate"):
        ROUND_TRIP["gpt-2"].encode("a\ud800")


def test_a_token_without_an_embedding_is_the_requests_error(tmp_path):
    backend = byte_tokenizer()
    backend.add_special_tokens(["<pad>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = read_tokenizer(tmp_path / "tokenizer.json", None, None, 288)
    assert tokenizer.encode("pad")
    with pytest.raises(RequestError, match=r"'<pad>', token 288.*ends at 287"):
        tokenizer.encode("a<pad>")


def test_another_kind_of_decoder_is_refused(tmp_path):
    from tokenizers import decoders

    backend = byte_tokenizer()
    for decoder in (decoders.WordPiece(), decoders.Sequence([decoders.ByteFallback()]), None):
        backend.decoder = decoder
        backend.save(str(tmp_path / "tokenizer.json"))
        with pytest.raises(ModelError, match=r"decoder is (WordPiece|ByteFallback|nothing): ByteLevel, or"):
            read_tokenizer(tmp_path / "tokenizer.json", None, None, 288)


def test_the_tokenizer_of_a_folder_is_transformers(tmp_path):
    from transformers import AutoTokenizer

    folder = tiny_llama(tmp_path / "model")
    tokenizer, reference = HFCheckpoint(folder).tokenizer, AutoTokenizer.from_pretrained(folder)
    for text in ("", "The cat's in the hat.\n\n  12 <|im_end|>", "été 🎉"):
        assert tokenizer.encode(text) == reference(text)["input_ids"]
        assert tokenizer.decode(tokenizer.encode(text)) == reference.decode(
            reference(text)["input_ids"], skip_special_tokens=True
        )


@pytest.mark.parametrize("adds", [False, True])
def test_tokenizer_json_alone_says_what_goes_around_a_text(adds, tmp_path):
    """As in transformers: ``add_bos_token`` in tokenizer_config.json does not overrule it."""
    from tokenizers import processors
    from transformers import AutoTokenizer

    folder = tiny_llama(tmp_path / "model")
    backend = byte_tokenizer()
    if adds:
        backend.post_processor = processors.TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    backend.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<|endoftext|>", "add_bos_token": not adds, "tokenizer_class": "PreTrainedTokenizerFast"}
    write_json(folder / "tokenizer_config.json", config)
    expected = AutoTokenizer.from_pretrained(folder)("ab")["input_ids"]
    assert HFCheckpoint(folder).tokenizer.encode("ab") == expected
    assert len(expected) == 2 + adds
