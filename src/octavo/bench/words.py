"""Words of which a prompt's text is made: common English ones, each a single token to most tokenizers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from octavo.errors import RequestError

if TYPE_CHECKING:
    from octavo.models.tokenizer import Tokenizer

_TEXT = """
    about above after again against all almost alone along also always among an and another any are area around as ask at away
    back bank base be because been before being below best better between big both box boy build but by call came can car case
    center change check child church city class clear close cold come common company could country course cut data day dead deep
    did do does done door down draw early earth east easy eat end enough even ever every eye face fact family far father feel few
    field find fire first five follow food foot for force form found four free friend from front full game get girl give go good
    got government great green group grow had half hand hard has have he head heart help her here high him his hold home hot hour
    house how human hundred idea if in inside into is it its just keep kind king know land large last late law lead learn leave
    left less let letter life light like line list little live local long look lost love low made main make man many map mark may
    me mean men might mind money month moon more most mother move much music must my name near need never new next night no north
    not note nothing now number of off office often oil old on once one only open or order other our out over own page paper part
    party pass past people person place plan plant play point power present press problem public put question quick quite reach
    read real red rest right river road rock room round rule run said same say school sea second see self set several she ship
    short should show side simple since six size slow small so some song soon sound south space stand star start state stay step
    still stop story street strong such sun system table take talk tell ten than that the their them then there these they thing
    think this those though thought three through time to together too top town tree true try turn two under unit until up upon us
    use very voice wait walk wall want war warm was watch water way we week well went were west what when where which while white
    who whole why wind with without woman wood word work world would write year yes you young
"""
COMMON = tuple(_TEXT.split())
FEWEST = 8  # words that texts can be made of
ENOUGH = 64  # words for which the vocabulary need not be searched
MOST_TRIED = 4000  # tokens of the vocabulary that are looked at as words


def exact_words(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Words that are one token each, at the beginning of a text and after a space; empty where the tokenizer has hardly any.

    The whole of them, joined by spaces, has been seen to have as many tokens as words.
    """
    words = [word for word in COMMON if _single(tokenizer, word)]
    if len(words) < ENOUGH:
        words += [word for word in _vocabulary(tokenizer) if word not in words and _single(tokenizer, word)]
    if len(words) < FEWEST or _count(tokenizer, " ".join(words)) != len(words):
        return ()
    return tuple(words)


def _vocabulary(tokenizer: Tokenizer) -> Iterator[str]:
    """The lower-case words among the tokens that begin with a space."""
    tried = 0
    for token_id in range(tokenizer.vocab_size):
        data = tokenizer.token_bytes(token_id)
        word = data[1:]
        if data[:1] == b" " and word.isalpha() and word.islower() and word.isascii():
            yield word.decode()
            tried += 1
            if tried == MOST_TRIED:
                return


def _single(tokenizer: Tokenizer, word: str) -> bool:
    return _count(tokenizer, word) == 1 and _count(tokenizer, f"{word} {word}") == 2


def _count(tokenizer: Tokenizer, text: str) -> int:
    try:
        return len(tokenizer.encode(text, add_special_tokens=False))
    except RequestError:
        return -1
