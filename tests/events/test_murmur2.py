import pyarrow as pa
import pytest

from airflow_provider_deltaforge.columns.murmur2_kernel import partitions_of

KEYS = [b"", b"a", b"ab", b"abc", b"abcd", b"foobar", b"21", bytes(range(190, 256)), None]


def murmur2(text):
    """Kafka's Utils.murmur2, from its definition."""
    factor, result = 0x5BD1E995, 0x9747B28C ^ len(text)
    whole = len(text) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(text[at : at + 4], "little") * factor & 0xFFFFFFFF
        word = (word ^ word >> 24) * factor & 0xFFFFFFFF
        result = result * factor & 0xFFFFFFFF ^ word
    if text[whole:]:
        result = (result ^ int.from_bytes(text[whole:], "little")) * factor & 0xFFFFFFFF
    result = (result ^ result >> 13) * factor & 0xFFFFFFFF
    return result ^ result >> 15


@pytest.mark.parametrize("count", [1, 4, 7, 2**31 - 1])
def test_keys_go_where_kafkas_clients_send_them(count):
    # From Kafka's own tests.
    assert (murmur2(b"foobar"), murmur2(b"21")) == (-790332482 & 2**32 - 1, -973932308 & 2**32 - 1)
    expected = [(murmur2(key or b"") & 0x7FFFFFFF) % count for key in KEYS]

    assert partitions_of(pa.array(KEYS, pa.binary()), count).tolist() == expected
    assert partitions_of(pa.array(KEYS, pa.binary()).slice(3, 4), count).tolist() == expected[3:7]


def test_no_keys_have_no_partitions():
    assert len(partitions_of(pa.array([], pa.binary()), 4)) == 0
