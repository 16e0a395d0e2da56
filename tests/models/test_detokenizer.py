"""Incremental detokenising: the same text as at once, never part of a character, at a fixed cost per token."""

import sys
from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from octavo.models.detokenizer import Detokenizer
from octavo.models.gguf_tokenizer import build_tokenizer
from octavo.models.tokenizer import Tokenizer
from tests.checkpoints import byte_tokenizer
from tests.models.test_tokenizer import PIECES, sentencepiece

LIBRARY = byte_tokenizer()
BYTE_LEVEL = Tokenizer(byte_tokenizer(), "test", None)
SENTENCES = build_tokenizer(sentencepiece([*PIECES, "▁été", "🎉"]))
FIRST_PIECE = 259  # of SENTENCES, after its special tokens and bytes

ids_of = {BYTE_LEVEL: st.integers(0, 287), SENTENCES: st.integers(0, FIRST_PIECE + len(PIECES) + 1)}


def broken_text(tokenizer):
    """Ids of any kind, and of texts cut somewhere within a character."""
    texts = st.text(alphabet="a é🎉日", max_size=8).map(lambda text: tokenizer.encode(text, add_special_tokens=False))
    cut = st.tuples(texts, st.integers(0, 3)).map(lambda drawn: drawn[0][: len(drawn[0]) - drawn[1]])
    return st.lists(cut | st.lists(ids_of[tokenizer], max_size=6), max_size=6).map(lambda parts: list(chain(*parts)))


def in_pieces(tokenizer, ids, sizes, skip=True):
    detokenizer = Detokenizer(tokenizer, skip)
    texts, at = [], 0
    for size in sizes:
        texts.append(detokenizer.push(ids[at : at + size]))
        at += size
    return [*texts, detokenizer.push(ids[at:]), detokenizer.flush()]


SIZES = st.lists(st.integers(0, 5), max_size=40) | st.just([1] * 100)


@settings(max_examples=200)
@given(ids=broken_text(BYTE_LEVEL), sizes=SIZES, skip=st.booleans())
def test_byte_level_in_pieces_is_the_librarys_text(ids, sizes, skip):
    """The tokenizers library decodes at once; invalid bytes included, the text is the same."""
    expected = LIBRARY.decode(ids, skip_special_tokens=skip)
    assert "".join(in_pieces(BYTE_LEVEL, ids, sizes, skip)) == expected
    assert BYTE_LEVEL.decode(ids, skip) == expected


@settings(max_examples=200)
@given(ids=broken_text(SENTENCES), sizes=SIZES, skip=st.booleans())
def test_sentencepiece_in_pieces_is_the_text_at_once(ids, sizes, skip):
    assert "".join(in_pieces(SENTENCES, ids, sizes, skip)) == SENTENCES.decode(ids, skip)


@given(ids=st.lists(st.integers(FIRST_PIECE, FIRST_PIECE + len(PIECES) + 1), max_size=12), skip=st.booleans())
def test_sentencepiece_pieces_are_the_librarys_text(ids, skip):
    vocab = {SENTENCES.token(i): i for i in range(SENTENCES.vocab_size)}
    library = Backend(models.BPE(vocab=vocab, merges=[]))
    strip = decoders.Strip(" ", 1, 0)
    library.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    assert SENTENCES.decode(ids, skip) == library.decode(ids)


@given(text=st.text(max_size=30))
def test_whole_characters_come_as_soon_as_they_are_complete(text):
    """One byte at a time: every push yields nothing or whole characters, and a complete one is not held back."""
    ids = [BYTE_LEVEL.token_id(chr_) for chr_ in byte_letters(text)]
    detokenizer = Detokenizer(BYTE_LEVEL)
    seen, encoded = "", text.encode()
    for i, token in enumerate(ids):
        seen += detokenizer.push([token])
        assert seen == encoded[: i + 1].decode(errors="ignore")
    assert detokenizer.flush() == ""


def byte_letters(text):
    """The letter of each byte of the text, in byte-level vocabularies."""
    from tokenizers import pre_tokenizers

    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return "".join(word for word, _ in words)


def test_a_character_cut_off_at_the_end_is_shown_as_such():
    ids = BYTE_LEVEL.encode("a🎉")
    detokenizer = Detokenizer(BYTE_LEVEL)
    assert detokenizer.push(ids[:-1]) == "a"
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_going_on_from_a_prompt():
    prompt, answer = SENTENCES.encode("abc"), [SENTENCES.token_id("▁a"), SENTENCES.token_id("b")]
    assert Detokenizer(SENTENCES).push(answer) == "ab"  # a text of its own: the first space is no part of it
    assert Detokenizer(SENTENCES, prompt_tail=prompt).push(answer) == " ab"
    assert Detokenizer(SENTENCES, prompt_tail=[1]).push(answer) == "ab"  # only <s> before it
    emoji = BYTE_LEVEL.encode("🎉")
    assert Detokenizer(BYTE_LEVEL, prompt_tail=emoji[:2]).push(emoji[2:]) == "🎉"


def test_special_tokens():
    ids = BYTE_LEVEL.encode("a<|im_end|>b")
    assert Detokenizer(BYTE_LEVEL).push(ids) == "ab"
    assert Detokenizer(BYTE_LEVEL, skip_special_tokens=False).push(ids) == "a<|im_end|>b"


def test_ids_outside_the_vocabulary_have_no_text():
    a = BYTE_LEVEL.token_id("a")
    strange = [a, 288, 10**6, -1, 2**31, 2**32, 2**64, a]
    assert Detokenizer(BYTE_LEVEL).push(strange) == "aa"
    assert BYTE_LEVEL.decode(strange) == "aa"
    assert BYTE_LEVEL.token(2**40) is None


def test_undecodable_bytes_cost_no_more_and_are_not_kept():
    """A continuation byte without a beginning, over and over: each is answered at once, and nothing piles up."""
    stray = BYTE_LEVEL.token_id(byte_letters("é")[1])
    for tokenizer, token in ((BYTE_LEVEL, stray), (SENTENCES, SENTENCES.token_id("<0xA9>"))):
        detokenizer = Detokenizer(tokenizer)
        assert [detokenizer.push([token]) for _ in range(1000)] == ["\ufffd"] * 1000
        assert sys.getsizeof(detokenizer._utf8.getstate()[0]) < 100
