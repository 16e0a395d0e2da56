"""The tokenizer that a GGUF file's metadata (``tokenizer.ggml.*``) describes.

What the names stand for is defined by llama.cpp (``src/llama-vocab.cpp``), which this follows, defaults included.
"""

from __future__ import annotations

from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from octavo.errors import ModelError
from octavo.models.fields import Fields
from octavo.models.tokenizer import Tokenizer

KEY = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
# Tokens that end a turn, whether or not the file names them as such: older converters only named the end of the text.
TURN_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>")
SPACE = "▁"  # U+2581 stands for a space in SentencePiece vocabularies

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Of each pre-tokenizer: the expressions that cut a text into words, one after the other, each within the pieces of the last.
WORDS = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (GPT2,),
    "smollm": (r"\p{N}", GPT2),
    "llama-bpe": (LLAMA3,),
    "llama3": (LLAMA3,),
    "llama-v3": (LLAMA3,),
}
LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")


def build_tokenizer(fields: Fields) -> Tokenizer:
    """The tokenizer. Raises ModelError, naming the field, where it is missing, contradicts itself or is of another kind."""
    tokens = _tokens(fields)
    types: list[int] = _per_token(fields, "token_type", len(tokens), int) or [NORMAL] * len(tokens)
    model = fields.text(KEY + "model")
    try:
        if model == "gpt2":
            backend, adds_bos = _byte_level(fields, tokens)
        elif model == "llama":
            backend, adds_bos = _sentencepiece(fields, tokens, types)
        else:
            raise fields.refuse(KEY + "model", "'gpt2' or 'llama'")
    except ModelError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise ModelError(f"{fields.where}: the tokenizer's vocabulary and merges contradict each other: {error}.") from None
    bos, eos = _id(fields, "bos", tokens), _id(fields, "eos", tokens)
    named = {bos, eos, *end_tokens(fields)}
    special = [t for i, t in enumerate(tokens) if t and (types[i] in (CONTROL, UNKNOWN) or i in named)]
    plain = [t for i, t in enumerate(tokens) if t and types[i] == USER_DEFINED and i not in named]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])
    prefix = _added(fields, "bos", bos, adds_bos)
    suffix = _added(fields, "eos", eos, False)
    return Tokenizer(backend, fields.where, bos, prefix=prefix, suffix=suffix)


def end_tokens(fields: Fields) -> tuple[int, ...]:
    """The ids that end a generation: those that the file names, and control tokens known to end a turn."""
    stated = (fields.optional_integer(f"{KEY}{name}_token_id", low=0) for name in ("eos", "eot", "eom"))
    found = [token for token in stated if token is not None]
    tokens, types = fields.get(KEY + "tokens"), fields.get(KEY + "token_type")
    if isinstance(tokens, list) and isinstance(types, tuple):
        ends = [tokens.index(text) for text in TURN_ENDS if text in tokens]
        found += [token for token in ends if types[token : token + 1] == (CONTROL,)]
    return tuple(dict.fromkeys(found))


def special_token_strings(fields: Fields) -> dict[str, str]:
    """The texts of special tokens for the chat template: bos_token, eos_token, unk_token, pad_token where there are such."""
    tokens = _tokens(fields)
    ids = {
        "bos_token": _id(fields, "bos", tokens),
        "eos_token": _id(fields, "eos", tokens),
        "unk_token": _id(fields, "unknown", tokens),
        "pad_token": _id(fields, "padding", tokens),
    }
    return {name: tokens[i] for name, i in ids.items() if i is not None}


def _byte_level(fields: Fields, tokens: list[str]) -> tuple[tokenizers.Tokenizer, bool]:
    """Byte-level BPE (llama.cpp's "gpt2"), and whether it begins texts with the beginning-of-sequence token by default."""
    name = fields.text(KEY + "pre")
    if name not in WORDS:
        raise fields.refuse(KEY + "pre", ", ".join(map(repr, WORDS)))
    merges = fields.get(KEY + "merges")
    if not isinstance(merges, list):
        raise fields.refuse(KEY + "merges", "a list of strings")
    pairs = []
    for merge in merges:
        left, space, right = merge.partition(" ")
        if not (left and space and right):
            raise ModelError(f"{fields.where}: {KEY}merges holds {merge!r}: two tokens and a space between them are accepted.")
        pairs.append((left, right))
    vocab = {token: i for i, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=pairs, ignore_merges=name in LLAMA3_NAMES))
    cuts = [pre_tokenizers.Split(Regex(words), "isolated") for words in WORDS[name]]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, to_bytes])
    backend.decoder = decoders.ByteLevel()
    return backend, name in LLAMA3_NAMES


def _sentencepiece(fields: Fields, tokens: list[str], types: list[int]) -> tuple[tokenizers.Tokenizer, bool]:
    """SentencePiece BPE (llama.cpp's "llama"): merges come from the pieces' scores, unknown characters become byte tokens."""
    scores: list[float] | None = _per_token(fields, "scores", len(tokens), float)
    if scores is None:
        raise fields.refuse(KEY + "scores", "an array of numbers")
    unknown = tokens[_id(fields, "unknown", tokens) or 0]
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = merges_from_scores(tokens, types, scores)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", SPACE)
    restore = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if fields.boolean(KEY + "add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace])
        restore.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = replace
    backend.decoder = decoders.Sequence(restore)
    return backend, True


def merges_from_scores(tokens: list[str], types: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to make a piece from two others, best score first: SentencePiece merges whichever neighbours form the piece of
    the highest score. (Pieces of one score keep the order of their parts' ids.)"""
    ids = {token: i for i, token in enumerate(tokens) if types[i] == NORMAL}
    found = []
    for piece, i in ids.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                found.append((-scores[i], ids[left], ids[right], left, right))
    return [(left, right) for _, _, _, left, right in sorted(found)]


def _tokens(fields: Fields) -> list[str]:
    tokens = fields.get(KEY + "tokens")
    if not isinstance(tokens, list) or not tokens:
        raise fields.refuse(KEY + "tokens", "a list of strings")
    if len(set(tokens)) < len(tokens):
        raise ModelError(f"{fields.where}: {KEY}tokens holds a token twice.")
    return tokens


def _per_token(fields: Fields, name: str, count: int, kind: type) -> list[Any] | None:
    values = fields.get(KEY + name)
    if values is None:
        return None
    if not isinstance(values, tuple) or len(values) != count or not all(type(value) is kind for value in values):
        raise ModelError(f"{fields.where}: {KEY}{name} does not hold {count} numbers, one for each token.")
    return list(values)


def _id(fields: Fields, name: str, tokens: list[str]) -> int | None:
    return fields.optional_integer(f"{KEY}{name}_token_id", low=0, high=len(tokens) - 1)


def _added(fields: Fields, name: str, token: int | None, default: bool) -> list[int]:
    """The token that is put at one end of a text, where the file asks for that."""
    if not fields.boolean(f"{KEY}add_{name}_token", default):
        return []
    if token is None:
        raise ModelError(f"{fields.where} asks for a {name} token around every text but states no {KEY}{name}_token_id.")
    return [token]
