"""Clients to an endpoint: MTPLXClient, and AsyncMTPLXClient for asyncio."""

from __future__ import annotations

from mtplx_kernel.client.answers import Choice, Completion, Usage
from mtplx_kernel.client.asynchronous import AsyncMTPLXClient, AsyncTextStream
from mtplx_kernel.client.blocking import MTPLXClient, TextStream
from mtplx_kernel.client.retries import Retries

__all__ = [
    "AsyncMTPLXClient",
    "AsyncTextStream",
    "Choice",
    "Completion",
    "MTPLXClient",
    "Retries",
    "TextStream",
    "Usage",
]
