"""Tests that large payloads are compressed and recognised, and decompressed up to a limit only."""

import base64
import gzip
import json
import struct
import tracemalloc
import zlib
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psched.base.compression import compress, decompress, in_base64, readable
from psched.base.errors import InvalidError
from psched.config import from_mapping
from psched.core.columns import decode, encode, parse_payload
from psched.core.model import Row

MIB = 2**20
LARGE = json.dumps({"text": "é" * 5000}, ensure_ascii=False)
SETTINGS = from_mapping({"url": "sqlite:///unused.db"})


@pytest.mark.parametrize("form", [bytes, in_base64])
@pytest.mark.parametrize("plain", [LARGE, LARGE.encode()])
def test_what_is_large_is_smaller_when_it_is_stored_and_the_same_when_it_is_read(form, plain):
    stored = compress(plain, 100, form)
    assert len(stored) < len(LARGE) / 10
    assert decompress(stored) == LARGE.encode()
    assert decode("data", stored) == json.loads(LARGE)
    assert readable(stored) == LARGE.encode()
    # A process can read the compressed payload and write it back without decompressing it.
    assert compress(stored, 10, form) == stored


@given(st.binary(max_size=200), st.sampled_from([bytes, in_base64]))
def test_any_bytes_survive(content, form):
    plain = b"{" + content
    stored = compress(plain, 1, form)
    assert len(stored) <= len(plain)
    assert decompress(stored) == plain


def test_it_is_gzip_as_any_client_knows_it():
    stored = compress(LARGE, 100, bytes)
    assert stored.startswith(b"\x1f\x8b")
    assert gzip.decompress(stored) == LARGE.encode()
    assert compress(LARGE, 100, in_base64).startswith("H4sI")
    assert decompress(gzip.compress(LARGE.encode())) == LARGE.encode()
    # Some databases' functions break base64 into lines, so line breaks are accepted.
    lines = base64.encodebytes(gzip.compress(LARGE.encode()))
    assert decompress(lines) == decompress(lines.decode()) == LARGE.encode()


def test_what_is_not_larger_than_the_limit_stays_readable_in_the_table():
    content = LARGE.encode()
    assert compress(LARGE, len(content), bytes) == LARGE
    assert compress(LARGE, len(content) - 1, bytes) != LARGE
    assert compress(LARGE, 0, bytes) == LARGE


def test_what_does_not_get_smaller_stays_as_it_is():
    plain = '{"a":"xyz"}'
    assert compress(plain, 1, bytes) == plain


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (gzip.compress(b"{}")[:-1], "has no end"),
        (gzip.compress(b"{}")[:5], "has no end"),
        (gzip.compress(b"{}")[:-8] + b"\0" * 8, "broken"),
        (b"\x1f\x8b", "has no end"),
        (b"\x1f\x8bnonsense", "broken"),
        (in_base64(b"\x1f\x8b\x08nonsense"), "broken"),
        (gzip.compress(b"[]"), "must be a JSON object"),
        (gzip.compress(b"\xff"), "is not JSON"),
        (gzip.compress(gzip.compress(b"{}")), "is not JSON"),
        ("H4sI", "has no end"),
        ("H4sI no base64!", "is not JSON"),
        ("H4sIé", "is not JSON"),
        (b"H4sI\xff", "is not JSON"),
    ],
    # A compressed value is no id, because it contains the time of compression and so varies.
    ids=lambda value: value if isinstance(value, str) and value.isascii() else "",
)
def test_what_cannot_be_unpacked_is_refused_with_the_columns_name(stored, reason):
    with pytest.raises(InvalidError, match=rf"^data: .*{reason}"):
        decode("data", stored)
    assert readable(stored) is not None


def test_nothing_stays_nothing():
    assert readable(None) is None
    assert readable("") == ""
    assert readable("no JSON") == "no JSON"


def bomb(count):
    """So many MiB as gzip packs them. They are alike, so that it is enough to pack one."""
    begin, plain, packer = b'{"a":"', b"x" * MIB, zlib.compressobj(9, wbits=-15)
    start, piece = (
        packer.compress(each) + packer.flush(zlib.Z_FULL_FLUSH) for each in (begin, plain)
    )
    checksum = reduce(lambda sum_, _: zlib.crc32(plain, sum_), range(count), zlib.crc32(begin))
    end = struct.pack("<II", checksum, len(begin) + count * MIB)
    return gzip.compress(b"")[:10] + start + count * piece + packer.flush() + end


@pytest.mark.parametrize("form", [bytes, in_base64])
def test_of_a_bomb_no_more_is_unpacked_than_may_be(form):
    packed = bomb(500)
    assert len(packed) < MIB
    assert zlib.decompress(bomb(2), wbits=31) == b'{"a":"' + b"x" * 2 * MIB
    row = Row(key="k", data=form(packed))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidError, match=f"data: is compressed, and .* {16 * MIB} bytes"):
            parse_payload(row.data, SETTINGS.data_limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 60 * MIB


def test_a_limit_that_was_raised_counts_and_one_that_was_lowered_makes_no_row_unreadable():
    large = {"a": "x" * 17 * MIB}
    stored = compress(json.dumps(large), 1, bytes)
    with pytest.raises(InvalidError, match="is compressed"):
        parse_payload(stored, SETTINGS.data_limit)
    assert parse_payload(stored, 20 * MIB) == large
    assert parse_payload(compress(LARGE, 1, bytes), 1024) == json.loads(LARGE)


def test_a_payload_that_is_too_large_is_refused_with_its_size_and_the_mend():
    assert encode("data", {"a": "é"}, most=10) == '{"a":"é"}'
    with pytest.raises(InvalidError) as refused:
        encode("data", {"a": "éé"}, most=10)
    assert refused.value.field == "data"
    assert str(refused.value).startswith("data: has 12 bytes as JSON, and data_limit is 10; store")
