"""Content codings of HTTP bodies, decoded within a budget and without holding up the event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from zarrasync._concurrency.offload import compute
from zarrasync._util.output_budget import BudgetExceeded, OutputBudget, expansion_budget
from zarrasync.codecs.base import Decoder, Out
from zarrasync.codecs.decompression import DecoderFactory, is_data_error
from zarrasync.codecs.gzip import RAW_WINDOW, ZLIB_WINDOW, gzip_decoder, inflate_decoder
from zarrasync.codecs.spec import Buffer
from zarrasync.codecs.zstd import zstd_decoder
from zarrasync.stores.http.message import Response

__all__ = ["ACCEPTED", "UNDECLARED_LIMIT", "body_limit", "codings_of", "decoded", "is_supported"]

ACCEPTED = "gzip, deflate"
"""The ``Accept-Encoding`` header of requests for whole values."""
UNDECLARED_LIMIT = OutputBudget(1 << 30, "the limit is 1 GiB if the length is not declared")
"""Maximum size of a body whose length is not declared, if no other limit applies."""
_MOST_CODINGS = 3
_QUICK, _BOUNDED = 1 << 14, frozenset({"gzip", "x-gzip", "deflate"})
"""Bytes of one coding that decode to at most 16 MiB, which an event loop may do itself, and the codings with such a bound."""
_LEAST_ERROR = 1 << 20
"""Bytes that a response to a failed request may have, whatever the limit of the value is."""


def _deflate_decoder(size: int | None, limit: int) -> Decoder:
    """Return a decoder of zlib's format. Some servers send plain DEFLATE instead, which RFC 9110 mentions."""
    decode_zlib, decode_raw = inflate_decoder(ZLIB_WINDOW)(size, limit), inflate_decoder(RAW_WINDOW)(size, limit)

    def decode(data: Buffer, out: Out) -> Buffer:
        header = bytes(data[:2])
        is_zlib = len(header) == 2 and header[0] & 15 == 8 and int.from_bytes(header, "big") % 31 == 0
        return (decode_zlib if is_zlib else decode_raw)(data, out)

    return decode


_DECODERS: dict[str, DecoderFactory] = {
    "gzip": gzip_decoder,
    "x-gzip": gzip_decoder,
    "deflate": _deflate_decoder,
    "zstd": zstd_decoder,
}


def codings_of(headers: Mapping[str, str]) -> list[str]:
    """Return the content codings of a body, in the order in which they were applied."""
    codings = headers.get("content-encoding", "").lower().split(",")
    return [coding.strip() for coding in codings if coding.strip() not in ("", "identity")]


def is_supported(codings: Sequence[str]) -> bool:
    """Return whether a body with these codings can be decoded."""
    return len(codings) <= _MOST_CODINGS and all(coding in _DECODERS for coding in codings)


def body_limit(limit: int | None, status: int, headers: Mapping[str, str]) -> int | None:
    """Return the most bytes of a body to receive.

    Args:
        limit: The most bytes of the value; ``None`` for any number.
        status: Status code.
        headers: Header values by name in lower case.
    """
    if limit is None or (status < 300 and "content-encoding" not in headers):
        return limit
    most = limit + limit // 8 + _QUICK if status < 300 else max(limit, _LEAST_ERROR)
    return most if not isinstance(limit, OutputBudget) else OutputBudget(most, limit.origin)


async def decoded(response: Response, limit: int | None) -> Response:
    """Return a response with its body decoded.

    Args:
        response: A response with supported codings.
        limit: The most bytes of the decoded body; ``None`` for a limit that depends on the size of the encoded one.

    Raises:
        BudgetExceeded: If more would come out.
        ConnectionError: If the body is damaged.
    """
    codings = codings_of(response.headers)
    if not codings:
        return response
    body = response.body
    if response.status >= 300 and limit is not None:
        limit = max(limit, _LEAST_ERROR)
    work = partial(_decode, codings, body, expansion_budget(len(body)) if limit is None else limit)
    is_quick = len(body) <= _QUICK and codings[0] in _BOUNDED and len(codings) == 1
    return response._replace(body=work() if is_quick else await compute(work))


def _decode(codings: Sequence[str], body: Buffer, limit: int) -> Buffer:
    for coding in reversed(codings):
        try:
            body = _DECODERS[coding](None, limit)(body, None)
        except (BudgetExceeded, MemoryError):
            raise  # the body may be valid
        except Exception as error:
            if not is_data_error(error):
                raise
            raise ConnectionError(f"invalid HTTP/1.1 response: its body is not valid {coding}: {error}") from error
    return body
