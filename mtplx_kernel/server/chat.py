"""/v1/chat/completions: messages in, the model's message out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mtplx_kernel.server.answering import Form, answer, options_of
from mtplx_kernel.server.answers import (
    Answer,
    AnswerMessage,
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
from mtplx_kernel.server.exchange import Question
from mtplx_kernel.server.schema import LATER_CHAT, ChatRequest, Message
from mtplx_kernel.server.serving import Head, Serving
from mtplx_kernel.server.tokens import Piece, Reported, TokenTexts, shown


class ChatForm(Form):
    """Writes chat completions.

    Parameters
    ----------
    texts
        Reads the tokens; None where no log-probabilities were asked for.
    usage
        Whether chunks say that they have no usage: where the last one has it.
    """

    def __init__(self, head: Head, texts: TokenTexts | None, *, usage: bool) -> None:
        super().__init__(head)
        self._texts = texts
        self._no_usage: dict[str, Any] = {"usage": None} if usage else {}

    def opening(self, index: int) -> Answer:
        """Say whose message it is."""
        delta = MessageDelta(role="assistant", content="", refusal=None)
        return self._chunk(index, delta, None, None)

    def chunk(self, index: int, piece: Piece) -> Answer:
        """Add to the message."""
        return self._chunk(
            index, MessageDelta(content=piece.text), self._logprobs(piece.reported), None
        )

    def closing(self, index: int, reason: FinishReason) -> Answer:
        """Say why the message ended."""
        return self._chunk(index, MessageDelta(), None, reason)

    def last(self, extras: dict[str, Any]) -> Answer:
        """A chunk without choices."""
        extras = {**self._no_usage, **extras}
        return ChatChunk(**self.head, object="chat.completion.chunk", choices=[], **extras)

    def whole(
        self, answers: Sequence[tuple[Piece, FinishReason]], usage: Usage, extras: dict[str, Any]
    ) -> Answer:
        """The messages at once."""
        choices = [
            ChatChoice(
                index=index,
                message=AnswerMessage(role="assistant", content=piece.text, refusal=None),
                logprobs=self._logprobs(piece.reported),
                finish_reason=reason,
            )
            for index, (piece, reason) in enumerate(answers)
        ]
        return ChatAnswer(
            **self.head, object="chat.completion", choices=choices, usage=usage, **extras
        )

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
    messages = [_message(message) for message in asked.messages]
    questions = [Question(messages, options) for options in options_of(asked, engine, hyper=hyper)]
    texts = None if asked.likeliest is None else TokenTexts(engine.tokenizer)
    form = ChatForm(serving.head("chatcmpl", engine), texts, usage=asked.include_usage)
    return await answer(request, serving, asked, engine, questions, form, texts)


def _message(message: Message) -> dict[str, str]:
    """A message as the chat template gets it; a developer is the system's newer name."""
    role = "system" if message.role == "developer" else message.role
    named = {} if message.name is None else {"name": message.name}
    return {"role": role, "content": message.text, **named}
