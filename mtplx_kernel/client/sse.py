"""Server-sent events: from the bytes of a response to the data of its events."""

from __future__ import annotations

from collections.abc import Iterator


class EventDecoder:
    """Holds what has come of an event until it is whole.

    Lines end with LF, CR LF or CR alone, and with nothing else: the line separators of Unicode may
    stand in an answer's text.
    """

    def __init__(self) -> None:
        self._line = b""
        self._data: list[bytes] = []
        self._after_cr = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The data of the events that `chunk` completes; comments and other fields are skipped."""
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_cr = False
        if not chunk:
            return
        self._after_cr = chunk.endswith(b"\r")
        lines = (self._line + chunk).splitlines(keepends=True)
        self._line = b"" if lines[-1].endswith((b"\n", b"\r")) else lines.pop()
        for line in lines:
            field, _, value = line.rstrip(b"\r\n").partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
            elif line in {b"\n", b"\r", b"\r\n"} and self._data:
                yield b"\n".join(self._data)
                self._data = []
