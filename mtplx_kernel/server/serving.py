"""What all routes share: the engine in force, its name to clients, and the thread that submits."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mtplx_kernel import __version__
from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.server.answers import Model
from mtplx_kernel.server.errors import APIError
from mtplx_kernel.server.exchange import Exchange
from mtplx_kernel.server.post import Post

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine

OWNER = "mtplx-kernel"
COMPILERS = 2
"""Threads that compile: so many schemas that take long hold up nobody else."""


@dataclass(frozen=True, slots=True)
class Head:
    """What every object of one answer begins with."""

    id: str
    created: int
    model: str
    system_fingerprint: str

    def fields(self) -> dict[str, Any]:
        """As keyword arguments."""
        return {name: getattr(self, name) for name in self.__slots__}


class Serving:
    """The engines that answer, one at a time.

    Parameters
    ----------
    engines
        Gives the engine in force: after a switch of the model it is another one.
    """

    def __init__(self, engines: Callable[[], Engine]) -> None:
        self._engines = engines
        self._submitter = ThreadPoolExecutor(1, thread_name_prefix="mtplx-submit")
        self._compiler = ThreadPoolExecutor(COMPILERS, thread_name_prefix="mtplx-compile")
        self._since = int(time.time())
        self._post: Post | None = None

    def engine(self, model: str) -> Engine:
        """The engine in force, if it is of this name.

        Raises
        ------
        APIError
            If it is not.
        EngineClosed
            If there is none.
        """
        engine = self._engines()
        if model != engine.name:
            raise APIError(
                404,
                f"the model {model[:80]!r} is not served here; allowed: {engine.name}",
                param="model",
                code="model_not_found",
            )
        return engine

    def model(self, name: str | None = None) -> Model:
        """The model that answers now; APIError if it is not of this name."""
        engine = self._engines() if name is None else self.engine(name)
        return Model(id=engine.name, object="model", created=self._since, owned_by=OWNER)

    def head(self, prefix: str, engine: Engine) -> Head:
        """The head of a new answer; its id begins with `prefix`."""
        name = f"{prefix}-{secrets.token_hex(12)}"
        return Head(name, int(time.time()), engine.name, fingerprint(engine))

    def exchange(self) -> Exchange:
        """An exchange on the running event loop."""
        loop = asyncio.get_running_loop()
        if self._post is None or self._post.loop is not loop:
            self._post = Post(loop)
        return Exchange(self._submitter, self._post)

    async def compile(self, engine: Engine, options: dict[str, Any], param: str) -> None:
        """Have what an answer is to be held to compiled, away from all that others wait for.

        Parameters
        ----------
        options
            Of a request to come, which will find it compiled.
        param
            The parameter that it comes from.

        Raises
        ------
        APIError
            If it cannot be used.
        InvalidRequest
            If another of the options is wrong.
        """
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._compiler, engine.intake.params, options)
        except InvalidRequest as error:
            option, _, said = str(error).partition(" ")
            if option not in ("json_schema", "grammar"):
                raise
            said = " ".join(said.split())
            raise APIError(400, f"{param} {said}", param=param, code="invalid_value") from None

    def close(self) -> None:
        """Let the threads go."""
        self._compiler.shutdown(wait=False, cancel_futures=True)
        self._submitter.shutdown(wait=False, cancel_futures=True)


def fingerprint(engine: Engine) -> str:
    """What must be equal for equal seeds to give equal answers: model, precision, version."""
    facts = engine.facts
    told = "\n".join((facts.name, facts.precision, facts.device, __version__))
    return f"fp_{hashlib.sha256(told.encode()).hexdigest()[:12]}"
