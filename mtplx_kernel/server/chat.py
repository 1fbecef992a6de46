"""/v1/chat/completions: messages in, the model's message out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mtplx_kernel.server.answering import Form, answer, options_of
from mtplx_kernel.server.answers import (
    Answer,
    AnsweredCall,
    AnswerMessage,
    CallDelta,
    CalledFunction,
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatLogprobs,
    ChosenToken,
    FinishReason,
    LikelyToken,
    MessageDelta,
    Usage,
    finite,
)
from mtplx_kernel.server.body import read_body
from mtplx_kernel.server.calls import Call, CallReader, Read
from mtplx_kernel.server.exchange import Question
from mtplx_kernel.server.schema import LATER_CHAT, ChatRequest
from mtplx_kernel.server.serving import Head, Serving
from mtplx_kernel.server.tokens import Piece, Reported, TokenTexts, shown
from mtplx_kernel.server.tools import ToolUse


class ChatForm(Form):
    """Writes chat completions.

    Parameters
    ----------
    texts
        Reads the tokens; None where no log-probabilities were asked for.
    use
        How the model writes calls.
    usage
        Whether chunks say that they have no usage: where the last one has it.
    """

    def __init__(self, head: Head, texts: TokenTexts | None, use: ToolUse, *, usage: bool) -> None:
        super().__init__(head)
        self._texts = texts
        self._use = use
        self._readers: dict[int, CallReader] = {}
        self._no_usage: dict[str, Any] = {"usage": None} if usage else {}

    def opening(self, index: int) -> Answer:
        """Say whose message it is."""
        delta = MessageDelta(role="assistant", content="", refusal=None)
        return self._chunk(index, delta, None, None)

    def chunks(self, index: int, piece: Piece) -> Iterator[Answer]:
        """Add to the message, once it is known what the text is."""
        return self._deltas(index, self._reader(index).add(piece.text), piece.reported)

    def closing(self, index: int, reason: FinishReason) -> Iterator[Answer]:
        """Say why the message ended."""
        reader = self._reader(index)
        yield from self._deltas(index, reader.end(), ())
        yield self._chunk(index, MessageDelta(), None, _reason(reader, reason))

    def last(self, extras: dict[str, Any]) -> Answer:
        """A chunk without choices."""
        extras = {**self._no_usage, **extras}
        return ChatChunk(**self.head, object="chat.completion.chunk", choices=[], **extras)

    def whole(
        self, answers: Sequence[tuple[Piece, FinishReason]], usage: Usage, extras: dict[str, Any]
    ) -> Answer:
        """The messages at once."""
        choices = [
            self._choice(index, piece, reason) for index, (piece, reason) in enumerate(answers)
        ]
        return ChatAnswer(
            **self.head, object="chat.completion", choices=choices, usage=usage, **extras
        )

    def _choice(self, index: int, piece: Piece, reason: FinishReason) -> ChatChoice:
        reader = self._reader(index)
        read = reader.add(piece.text) + reader.end()
        called = [_call(call) for call in read.calls]
        return ChatChoice(
            index=index,
            message=AnswerMessage(
                role="assistant",
                content=read.content if read.content or not called else None,
                refusal=None,
                **({"tool_calls": called} if called else {}),
            ),
            logprobs=self._logprobs(piece.reported),
            finish_reason=_reason(reader, reason),
        )

    def _reader(self, index: int) -> CallReader:
        return self._readers.setdefault(index, CallReader(self._use))

    def _deltas(self, index: int, read: Read, reported: Sequence[Reported]) -> Iterator[Answer]:
        if read.content or reported:
            delta = MessageDelta(content=read.content)
            yield self._chunk(index, delta, self._logprobs(reported), None)
        if read.calls:
            first = self._reader(index).count - len(read.calls)
            calls = [
                CallDelta(index=first + i, **_call(call).model_dump())
                for i, call in enumerate(read.calls)
            ]
            yield self._chunk(index, MessageDelta(tool_calls=calls), None, None)

    def _chunk(
        self,
        index: int,
        delta: MessageDelta,
        logprobs: ChatLogprobs | None,
        reason: FinishReason | None,
    ) -> Answer:
        choice = ChatChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=reason)
        return ChatChunk(
            **self.head, object="chat.completion.chunk", choices=[choice], **self._no_usage
        )

    def _logprobs(self, reported: Iterable[Reported]) -> ChatLogprobs | None:
        if self._texts is None:
            return None
        return ChatLogprobs(content=[self._token(each) for each in reported], refusal=None)

    def _token(self, reported: Reported) -> ChosenToken:
        likely = [self._likely(token, logprob) for token, logprob in reported.logprob.top]
        return ChosenToken(
            token=shown(reported.content),
            logprob=finite(reported.logprob.logprob),
            bytes=list(reported.content),
            top_logprobs=likely,
        )

    def _likely(self, token: int, logprob: float) -> LikelyToken:
        assert self._texts is not None
        content = self._texts.content(token)
        return LikelyToken(token=shown(content), logprob=finite(logprob), bytes=list(content))


async def chat(request: Request, serving: Serving, *, hyper: bool) -> Response:
    """Answer a chat.

    Parameters
    ----------
    hyper
        Whether it takes its turn in the line of hyper.
    """
    asked = await read_body(request, ChatRequest, LATER_CHAT)
    engine = serving.engine(asked.model)
    use = ToolUse.of(asked, engine.tokenizer)
    shape = use.options
    if use.grammar is None and asked.response_format is not None:
        schema = asked.response_format.schema_text
        shape |= {} if schema is None else {"json_schema": schema}
    wanted = [{**options, **shape} for options in options_of(asked, engine, hyper=hyper)]
    if use.grammar is not None or "json_schema" in shape:
        param = "response_format" if use.grammar is None else "tools"
        await serving.compile(engine, wanted[0], param)
    messages = use.messages(asked.messages)
    questions = [Question(messages, options) for options in wanted]
    texts = None if asked.likeliest is None else TokenTexts(engine.tokenizer)
    form = ChatForm(serving.head("chatcmpl", engine), texts, use, usage=asked.include_usage)
    return await answer(request, serving, asked, engine, questions, form, texts)


def _call(call: Call) -> AnsweredCall:
    function = CalledFunction(name=call.name, arguments=call.arguments)
    return AnsweredCall(id=call.id, type="function", function=function)


def _reason(reader: CallReader, reason: FinishReason) -> FinishReason:
    """An answer that ended by itself, with calls, ended for them."""
    return "tool_calls" if reader.count and reason == "stop" else reason
