"""From what a client asked to what it gets: the same path for chats and completions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from mtplx_kernel.engine.request import Generation
from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.server.answers import Answer, FinishReason, Stats, Usage, stats_of, usage_of
from mtplx_kernel.server.body import JSON
from mtplx_kernel.server.errors import APIError, of_engine
from mtplx_kernel.server.exchange import Ended, Exchange, Question, Said, while_connected
from mtplx_kernel.server.schema import Asked
from mtplx_kernel.server.serving import Head, Serving
from mtplx_kernel.server.stream import EventStream
from mtplx_kernel.server.tokens import Piece, TokenTexts, Transcript

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine

SEEDS = 2**64
AS_NAMED = (
    "presence_penalty",
    "frequency_penalty",
    "min_p",
    "top_k",
    "depth",
    "acceptance",
    "priority",
    "ignore_eos",
)
"""Options that the engine has under the same name, with its own defaults."""


class Form(ABC):
    """How one route writes its answers.

    Parameters
    ----------
    head
        What every object of the answer begins with.
    """

    def __init__(self, head: Head) -> None:
        self.head = head.fields()

    @abstractmethod
    def opening(self, index: int) -> Answer | None:
        """A choice's first chunk, before any token; None for none."""

    @abstractmethod
    def chunks(self, index: int, piece: Piece) -> Iterable[Answer]:
        """What more of a choice's text comes to: mostly one chunk."""

    @abstractmethod
    def closing(self, index: int, reason: FinishReason) -> Iterable[Answer]:
        """A choice's last chunks."""

    @abstractmethod
    def last(self, extras: dict[str, Any]) -> Answer:
        """The chunk after all choices: the usage and the stats, as they were asked for."""

    @abstractmethod
    def whole(
        self, answers: Sequence[tuple[Piece, FinishReason]], usage: Usage, extras: dict[str, Any]
    ) -> Answer:
        """The answer at once."""


async def answer(
    request: Request,
    serving: Serving,
    asked: Asked,
    engine: Engine,
    questions: Sequence[Question],
    form: Form,
    texts: TokenTexts | None,
) -> Response:
    """Have the engine answer, at once or as a stream.

    Parameters
    ----------
    texts
        Reads the tokens; None where no log-probabilities were asked for.

    Raises
    ------
    APIError
        If the engine refuses.
    RequestFailed, EngineClosed, ClientDisconnect
        If it fails, or the client goes, before an answer at once is whole.
    """
    exchange = serving.exchange()
    try:
        await exchange.open(engine, questions, live=bool(asked.stream))
    except InvalidRequest as error:
        raise of_engine(error, asked.prompt_param) from None
    if asked.stream:
        return EventStream(_chunks(exchange, asked, len(questions), form, texts), exchange)
    generations = await while_connected(request.receive, exchange)
    answers = [(_piece(each, texts), _reason(each)) for each in generations]
    extras = {"mtplx": stats_of(generations)} if asked.include_stats else {}
    whole = form.whole(answers, usage_of(generations, asked.choices), extras)
    return Response(whole.json_bytes(), media_type=JSON)


async def _chunks(
    exchange: Exchange, asked: Asked, count: int, form: Form, texts: TokenTexts | None
) -> AsyncGenerator[Answer, None]:
    for index in range(count):
        opening = form.opening(index)
        if opening is not None:
            yield opening
    transcripts = [Transcript(texts) for _ in range(count)]
    generations: dict[int, Generation] = {}
    async for batch in exchange.batches():
        # What came together goes together: tokens of one cycle, or those that a client was slow at.
        pieces: dict[int, Piece] = {}
        for event in batch:
            if isinstance(event, Said):
                piece = transcripts[event.index].add(event.text, event.logprob)
                pieces[event.index] = pieces.get(event.index, Piece()) + piece
        for index, piece in pieces.items():
            if piece:
                for chunk in form.chunks(index, piece):
                    yield chunk
        for event in batch:
            if isinstance(event, Ended):
                generation = generations[event.index] = event.generation()
                rest = transcripts[event.index].end(generation)
                chunks = list(form.chunks(event.index, rest)) if rest else []
                for chunk in [*chunks, *form.closing(event.index, _reason(generation))]:
                    yield chunk
    in_order = [generations[index] for index in range(count)]
    extras: dict[str, Usage | Stats] = {}
    if asked.include_usage:
        extras["usage"] = usage_of(in_order, asked.choices)
    if asked.include_stats:
        extras["mtplx"] = stats_of(in_order)
    if extras:
        yield form.last(extras)


def _piece(generation: Generation, texts: TokenTexts | None) -> Piece:
    """A whole answer, as the pieces of its stream would add up."""
    transcript = Transcript(texts)
    for logprob in generation.logprobs or ():
        transcript.add("", logprob)
    return transcript.end(generation)


def _reason(generation: Generation) -> FinishReason:
    return "length" if generation.finish_reason == "length" else "stop"


def options_of(asked: Asked, engine: Engine, *, hyper: bool) -> list[dict[str, Any]]:
    """What is asked of the engine: for each answer to a prompt, the options of its request.

    Raises
    ------
    APIError
        If the model, or the route, cannot have one of them.
    """
    context = engine.facts.context_length
    named = "max_tokens" if asked.max_tokens is not None else "max_completion_tokens"
    limit = getattr(asked, named, None)
    if limit is not None and limit > context:
        raise APIError(
            400,
            f"{named} must be at most {context}, the model's context, not {limit}",
            param=named,
            code="invalid_value",
        )
    if hyper and asked.priority is not None:
        raise APIError(
            400,
            "hyper runs one request at a time in the order in which they came, so it takes no "
            "priority",
            param="priority",
            code="unsupported_parameter",
        )
    options: dict[str, Any] = {
        "max_tokens": min(asked.most_tokens, context),
        "temperature": 1.0 if asked.temperature is None else asked.temperature,
        "stop": asked.stops,
        "hyper": hyper,
    }
    options |= {name: value for name in AS_NAMED if (value := getattr(asked, name)) is not None}
    if asked.generation_mode is not None:
        options["mode"] = asked.generation_mode
    if asked.top_p is not None:
        # The smallest set with no mass at all is the likeliest token alone.
        options |= {"top_p": asked.top_p} if asked.top_p > 0 else {"top_k": 1}
    if asked.logit_bias:
        options["logit_bias"] = {int(token): bias for token, bias in asked.logit_bias.items()}
    if asked.likeliest is not None:
        options["logprobs"] = asked.likeliest
    seeds = [
        None if asked.seed is None else (asked.seed + index) % SEEDS
        for index in range(asked.choices)
    ]
    return [{**options, "seed": seed} for seed in seeds]
