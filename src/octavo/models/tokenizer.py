"""Tokenizer: text to token ids and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import tokenizers

from octavo.errors import ModelError, RequestError
from octavo.models.bound import most_bytes_per_token
from octavo.models.detokenizer import Detokenizer
from octavo.models.pieces import Pieces, read_pieces

__all__ = ["Detokenizer", "Tokenizer", "read_tokenizer"]

LONG_TEXT = 2000  # characters; longer text is tokenised without holding the interpreter's lock


class Tokenizer:
    """A model's tokenizer. Built by ``read_tokenizer`` (tokenizer.json) or ``gguf_tokenizer.build_tokenizer``.

    vocab_size:   token ids that have a text, added tokens included. The model's own vocabulary may be larger (padding).
    bos_token_id: the token that begins a text; None where the model has none.
    special_ids:  tokens that stand for something other than text, such as the end of a turn.

    ``prefix`` and ``suffix`` are ids put around a text besides what the backend adds; ``model_vocab`` counts the embeddings.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        where: str,
        bos_token_id: int | None,
        model_vocab: int | None = None,
        prefix: Sequence[int] = (),
        suffix: Sequence[int] = (),
    ):
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._model_vocab = model_vocab
        self._prefix, self._suffix = list(prefix), list(suffix)
        self.pieces: Pieces = read_pieces(backend, where)
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self.bos_token_id = bos_token_id
        self.special_ids = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids. Special tokens written out in the text become these tokens, as in transformers and vLLM.

        add_special_tokens: also put around the text what the model expects there (beginning of sequence, for most).
        Raises RequestError where the text is not valid Unicode, or holds a token that the model has no embedding for.
        """
        try:
            if len(text) > LONG_TEXT:  # a batch gives the lock back, one text does not
                (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            else:
                encoding = self._backend.encode(text, add_special_tokens=add_special_tokens)
            ids: list[int] = encoding.ids
        except (TypeError, UnicodeEncodeError):  # the library raises the former for what Python can hold but UTF-8 cannot
            raise RequestError("The text holds half of a surrogate pair, which is not valid Unicode.", "prompt") from None
        if add_special_tokens:
            ids = self._prefix + ids + self._suffix
        if self._model_vocab is not None and ids and max(ids) >= self._model_vocab:
            token, last = max(ids), self._model_vocab - 1
            raise RequestError(
                f"The text holds {self.token(token)!r}, token {token}, but the model's vocabulary ends at {last}.", "prompt"
            )
        return ids

    def least_tokens(self, text: str) -> int:
        """Tokens that the text has at least, told from its length alone and so at once; 0 where the length tells nothing."""
        most = self._most_bytes_per_token
        return -(-len(text.encode("utf-8", "surrogatepass")) // most) if most else 0

    @cached_property
    def _most_bytes_per_token(self) -> int | None:
        return most_bytes_per_token(self._backend, self.pieces)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of these tokens. Bytes that are not valid UTF-8 become U+FFFD; ids outside the vocabulary have no text."""
        detokenizer = Detokenizer(self, skip_special_tokens)
        return detokenizer.push(ids) + detokenizer.flush()

    def token(self, token_id: int) -> str | None:
        """A token as the vocabulary spells it; None outside the vocabulary."""
        return self._backend.id_to_token(token_id) if 0 <= token_id < 2**32 else None

    def token_id(self, token: str) -> int | None:
        """The id of a token as the vocabulary spells it; None where it is not in the vocabulary."""
        return self._backend.token_to_id(token)

    def token_bytes(self, token_id: int) -> bytes:
        """What this token contributes to a text, in UTF-8: often less than a character. Empty outside the vocabulary."""
        return self.pieces.of(token_id)


def read_tokenizer(file: Path, bos_token: str | None, bos_token_id: int | None, model_vocab: int) -> Tokenizer:
    """The tokenizer of a ``tokenizer.json``. ``bos_token`` (its text) takes precedence over ``bos_token_id``."""
    if not file.is_file():
        raise ModelError(f"{file.parent} has no {file.name}.")
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise ModelError(f"{file} is not a valid tokenizer.json: {error}.") from None
    bos = None if bos_token is None else backend.token_to_id(bos_token)
    return Tokenizer(backend, str(file), bos_token_id if bos is None else bos, model_vocab)
