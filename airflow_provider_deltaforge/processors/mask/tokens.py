"""Tokens: values that look like what they stand for, digits for digits and letters for letters.

Over texts of one shape a token is a permutation: a Feistel network in the manner of NIST's FF1,
whose halves are numbers in mixed bases, with BLAKE2b and SHAKE256 as round functions. So different
values never share a token, and joins over tokens find what joins over the values would. It is no
implementation of FF1, and what has few possible values can be guessed from how often each occurs.
"""

import hashlib
import re
import string
from collections.abc import Callable

import orjson

_ROUNDS = 10
_SPARE_BITS = 64
"""Of a round's number beyond its base, so that no remainder is likelier than another."""
_BLAKE_BITS = 512
_LIKE_MAX = 256
"""Longer texts have tokens of another look: the numbers of their halves would be huge."""
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_DIGITS, _SMALL, _LARGE = string.digits, string.ascii_lowercase, string.ascii_uppercase
_INDEX = {letter: at for letters in (_DIGITS, _SMALL, _LARGE) for at, letter in enumerate(letters)}
_SHAPE = str.maketrans(
    _DIGITS + _SMALL + _LARGE, "0" * len(_DIGITS) + "a" * len(_SMALL) + "A" * len(_LARGE)
)
"""Makes all digits alike, and all letters of one case."""
_ALPHABET = {letter: letters for letters in (_DIGITS, _SMALL, _LARGE) for letter in letters}


class Tokens:
    """Makes tokens under one key of 32 bytes."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def text(self, text: str, *, plain: bool = True) -> bytes:
        """Return the token of a text as JSON text; of what is no ``plain`` text only a number."""
        alike = plain and len(text) <= _LIKE_MAX and text.isascii()
        if not alike or not any(letter in _ALPHABET for letter in text):
            return orjson.dumps(self._opaque(text))
        return orjson.dumps(self._like(text))

    def number(self, text: str) -> bytes:
        """Return the token of a number: the same characters as that of its text."""
        if len(text) > _LIKE_MAX:
            return self.text(text)
        token = self._like(text)
        return token.encode() if _NUMBER.fullmatch(token) else orjson.dumps(token)

    def _opaque(self, text: str) -> str:
        return hashlib.blake2b(text.encode(), key=self._key, digest_size=16).hexdigest()

    def _like(self, text: str) -> str:
        places = [at for at, letter in enumerate(text) if letter in _ALPHABET]
        alphabets = [_ALPHABET[text[at]] for at in places]
        letters, shape = list(text), text.translate(_SHAPE).encode()
        is_zero = _leads_with_zero(text, places)
        while True:
            word = self._permuted([letters[at] for at in places], alphabets, shape)
            for at, letter in zip(places, word, strict=True):
                letters[at] = letter
            # A number keeps its length: walking on until it does is a permutation as well.
            if is_zero is None or _leads_with_zero(letters, places) == is_zero:
                return "".join(letters)

    def _permuted(self, word: list[str], alphabets: list[str], shape: bytes) -> list[str]:
        """Return other letters of the same alphabets."""
        half = len(word) // 2
        left, right = alphabets[:half], alphabets[half:]
        values = [_number(word[:half], left), _number(word[half:], right)]
        sizes = [_size(left), _size(right)]
        draw = self._rounds(shape, max(sizes).bit_length() + _SPARE_BITS)
        for turn in range(_ROUNDS):
            into, other = turn % 2, 1 - turn % 2
            values[into] = (values[into] + draw(b"|%d|%d" % (turn, values[other]))) % sizes[into]
        return [*_letters(values[0], left), *_letters(values[1], right)]

    def _rounds(self, shape: bytes, bits: int) -> Callable[[bytes], int]:
        """Return the function that draws numbers of at least so many bits."""
        if bits <= _BLAKE_BITS:
            blake = hashlib.blake2b(shape, key=self._key, digest_size=_BLAKE_BITS // 8)

            def draw(told: bytes) -> int:
                said = blake.copy()
                said.update(told)
                return int.from_bytes(said.digest(), "big")

            return draw
        shake = hashlib.shake_256(self._key + shape)

        def draw_more(told: bytes) -> int:
            said = shake.copy()
            said.update(told)
            return int.from_bytes(said.digest((bits + 7) // 8), "big")

        return draw_more


def _leads_with_zero(text: str | list[str], places: list[int]) -> bool | None:
    """Say whether a number of several digits begins with zero; None of any other text."""
    if len(places) < 2 or not all(text[at] in _DIGITS for at in places):
        return None
    return text[places[0]] == "0"


def _size(alphabets: list[str]) -> int:
    size = 1
    for alphabet in alphabets:
        size *= len(alphabet)
    return size


def _number(word: list[str], alphabets: list[str]) -> int:
    value = 0
    for letter, alphabet in zip(word, alphabets, strict=True):
        value = value * len(alphabet) + _INDEX[letter]
    return value


def _letters(value: int, alphabets: list[str]) -> list[str]:
    found = []
    for alphabet in reversed(alphabets):
        value, at = divmod(value, len(alphabet))
        found.append(alphabet[at])
    return found[::-1]
