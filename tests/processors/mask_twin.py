"""What tokens mean, one value at a time, in plain Python."""

import json
import string

_WORDS = (string.digits, string.ascii_lowercase, string.ascii_uppercase)
_ALPHABETS = {letter: letters for letters in _WORDS for letter in letters}
_MASK = 2**64 - 1


def siphash(key, data):
    """Return SipHash-2-4 of 128 bits, as its authors describe it."""
    low, high = (int.from_bytes(part, "little") for part in (key[:8], key[8:]))
    v = [
        low ^ 0x736F6D6570736575,
        high ^ 0x646F72616E646F6D ^ 0xEE,
        low ^ 0x6C7967656E657261,
        high ^ 0x7465646279746573,
    ]
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) % 256])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        _rounds(v, 2)
        v[0] ^= word
    v[2] ^= 0xEE
    _rounds(v, 4)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    _rounds(v, 4)
    second = v[0] ^ v[1] ^ v[2] ^ v[3]
    return first.to_bytes(8, "little") + second.to_bytes(8, "little")


def _rounds(v, count):
    for _ in range(count):
        for a, b, turned, c, d, other in ((0, 1, 13, 2, 3, 16), (2, 1, 17, 0, 3, 21)):
            v[a] = (v[a] + v[b]) & _MASK
            v[b] = _turned(v[b], turned) ^ v[a]
            v[a] = _turned(v[a], 32)
            v[c] = (v[c] + v[d]) & _MASK
            v[d] = _turned(v[d], other) ^ v[c]


def _turned(word, bits):
    return (word << bits | word >> (64 - bits)) & _MASK


def token(key, value):
    """Return the token of a value, both as JSON text.

    Args:
        key: 32 bytes.
        value: the text.
    """
    parsed = json.loads(value)
    text = parsed if isinstance(parsed, str) else value
    plain = isinstance(parsed, (str, int, float)) and not isinstance(parsed, bool)
    places = [at for at, letter in enumerate(text) if letter in _ALPHABETS]
    if not plain or len(text) > 256 or not text.isascii() or not places:
        halves = siphash(key[16:], text.encode())
        return json.dumps("".join(half[::-1].hex() for half in (halves[:8], halves[8:])))
    alphabets = [_ALPHABETS[text[at]] for at in places]
    shape = "".join(_ALPHABETS.get(letter, letter)[0] for letter in text)
    own = siphash(key[:16], shape.encode())
    word = [letters.index(text[at]) for at, letters in zip(places, alphabets, strict=True)]
    is_number = set(alphabets) == {string.digits}
    is_zero = word[0] == 0
    while True:
        word = _permuted(own, word, [len(letters) for letters in alphabets])
        if not is_number or len(word) == 1 or (word[0] == 0) == is_zero:
            break
    made = list(text)
    for at, number, letters in zip(places, word, alphabets, strict=True):
        made[at] = letters[number]
    is_text = isinstance(parsed, str) or not is_number
    return json.dumps("".join(made)) if is_text else "".join(made)


def _permuted(key, word, sizes):
    half = len(word) // 2
    left, right = word[:half], word[half:]
    for turn in range(0, 10, 2):
        left = _added(key, turn, left, right, sizes[:half])
        right = _added(key, turn + 1, right, left, sizes[half:])
    return left + right


def _added(key, turn, word, told, sizes):
    drawn = []
    for block in range(0, len(word), 10):
        said = siphash(key, bytes([turn, block // 10, *told]))
        for part, first in ((said[:8], block), (said[8:], block + 5)):
            number = int.from_bytes(part, "little")
            for size in sizes[first : first + 5]:
                number, rest = divmod(number, size)
                drawn.append(rest)
    return [(one + more) % size for one, more, size in zip(word, drawn, sizes, strict=True)]
