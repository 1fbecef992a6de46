"""Users of an endpoint, in a process of their own: what they cost is not the engine's.

They speak HTTP over plain sockets and read the answers' events after the last one has come, so that
the times are the endpoint's. The first line on stdin says where it is, each further line is a plan;
each is answered by one line on stdout.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

EVENT, END = b"data: {", b"data: [DONE]\n\n"
CHUNK_BYTES = 65_536

Wish = dict[str, Any]
"""The body of a request."""


async def serve(url: str, token: str, plan: Sequence[Sequence[Wish]]) -> dict[str, Any]:
    """Have every user ask, one wish after the other, all of them at once.

    Returns
    -------
    dict
        `seconds` from the first request to the last answer's end, and the `answers` of each user.
    """
    started = time.perf_counter()
    answers = await asyncio.gather(*(_user(url, token, wishes) for wishes in plan))
    return {"seconds": time.perf_counter() - started, "answers": answers}


async def _user(url: str, token: str, wishes: Sequence[Wish]) -> list[dict[str, Any]]:
    return [await _answer(url, token, wish) for wish in wishes]


async def _answer(url: str, token: str, wish: Wish) -> dict[str, Any]:
    host, port = urlsplit(url).hostname, urlsplit(url).port
    body = json.dumps(wish).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
        f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    asked = time.perf_counter()
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(head.encode() + body)
        received, first_byte_s, first_text_s = b"", 0.0, 0.0
        while part := await reader.read(CHUNK_BYTES):
            received += part
            first_byte_s = first_byte_s or time.perf_counter() - asked
            if not first_text_s and EVENT in received:
                first_text_s = time.perf_counter() - asked
            if END in received[-2 * len(END) :]:
                break
    finally:
        writer.close()
    text, tokens = _read(received)
    return {
        "text": text,
        "tokens": tokens,
        "first_byte_s": first_byte_s,
        "first_text_s": first_text_s,
    }


def _read(received: bytes) -> tuple[str, int]:
    """The text of a response, and how many tokens it has by its own word."""
    head, _, rest = received.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise SystemExit(f"the endpoint answered: {received.decode(errors='replace')[:500]}")
    content = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        content, rest = content + rest[:length], rest[length + 2 :]
        if not length:
            break
    events = [line[6:] for line in content.split(b"\n") if line.startswith(EVENT)]
    chunks = [json.loads(event) for event in events]
    if not content.endswith(END) or "usage" not in chunks[-1]:
        raise SystemExit(f"the stream broke off: {content.decode(errors='replace')[-500:]}")
    text = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
    return text, chunks[-1]["usage"]["completion_tokens"]


def main() -> None:
    """Serve plans until stdin ends."""
    place = json.loads(sys.stdin.readline())
    for line in sys.stdin:
        print(json.dumps(asyncio.run(serve(place["url"], place["token"], json.loads(line)))))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
