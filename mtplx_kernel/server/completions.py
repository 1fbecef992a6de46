"""/v1/completions: text or token ids in, what the model writes on out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from mtplx_kernel.server.answering import Form, answer, options_of
from mtplx_kernel.server.answers import (
    Answer,
    FinishReason,
    TextAnswer,
    TextChoice,
    TextLogprobs,
    Usage,
    finite,
)
from mtplx_kernel.server.body import read_body
from mtplx_kernel.server.errors import APIError
from mtplx_kernel.server.exchange import Question
from mtplx_kernel.server.schema import LATER_COMPLETION, CompletionRequest
from mtplx_kernel.server.serving import Head, Serving
from mtplx_kernel.server.tokens import Piece, Reported, TokenTexts, shown

if TYPE_CHECKING:
    from mtplx_kernel.engine.engine import Engine


class TextForm(Form):
    """Writes completions.

    Parameters
    ----------
    echoes
        By choice: what stands before its text.
    texts
        Reads the tokens; None where no log-probabilities were asked for.
    likeliest
        How many of the likeliest tokens are told of each.
    usage
        Whether chunks say that they have no usage: where the last one has it.
    """

    def __init__(
        self,
        head: Head,
        echoes: Sequence[str],
        texts: TokenTexts | None,
        likeliest: int | None,
        *,
        usage: bool,
    ) -> None:
        super().__init__(head)
        self._echoes = echoes
        self._texts = texts
        self._likeliest = likeliest
        self._no_usage: dict[str, Any] = {"usage": None} if usage else {}

    def opening(self, index: int) -> Answer | None:
        """The prompt, where it is echoed."""
        echo = self._echoes[index]
        return self._chunk(index, echo, None, None) if echo else None

    def chunks(self, index: int, piece: Piece) -> list[Answer]:
        """Add to the text."""
        return [self._chunk(index, piece.text, self._logprobs(piece.reported), None)]

    def closing(self, index: int, reason: FinishReason) -> list[Answer]:
        """Say why the text ended."""
        return [self._chunk(index, "", None, reason)]

    def last(self, extras: dict[str, Any]) -> Answer:
        """A chunk without choices."""
        extras = {**self._no_usage, **extras}
        return TextAnswer(**self.head, object="text_completion", choices=[], **extras)

    def whole(
        self, answers: Sequence[tuple[Piece, FinishReason]], usage: Usage, extras: dict[str, Any]
    ) -> Answer:
        """The texts at once."""
        choices = [
            TextChoice(
                index=index,
                text=self._echoes[index] + piece.text,
                logprobs=self._logprobs(piece.reported),
                finish_reason=reason,
            )
            for index, (piece, reason) in enumerate(answers)
        ]
        return TextAnswer(
            **self.head, object="text_completion", choices=choices, usage=usage, **extras
        )

    def _chunk(
        self, index: int, text: str, logprobs: TextLogprobs | None, reason: FinishReason | None
    ) -> Answer:
        choice = TextChoice(index=index, text=text, logprobs=logprobs, finish_reason=reason)
        return TextAnswer(**self.head, object="text_completion", choices=[choice], **self._no_usage)

    def _logprobs(self, reported: Iterable[Reported]) -> TextLogprobs | None:
        if self._texts is None:
            return None
        tokens = list(reported)
        return TextLogprobs(
            tokens=[shown(each.content) for each in tokens],
            token_logprobs=[finite(each.logprob.logprob) for each in tokens],
            top_logprobs=[self._top(each) for each in tokens] if self._likeliest else None,
            text_offset=[each.offset for each in tokens],
        )

    def _top(self, reported: Reported) -> dict[str, float]:
        """The likeliest by their text; OpenAI's has the token itself too, likely or not."""
        assert self._texts is not None
        found: dict[str, float] = {}
        for token, logprob in reported.logprob.top:
            found.setdefault(shown(self._texts.content(token)), finite(logprob))
        found.setdefault(shown(reported.content), finite(reported.logprob.logprob))
        return found


async def completions(request: Request, serving: Serving, *, hyper: bool) -> Response:
    """Answer a completion.

    Parameters
    ----------
    hyper
        Whether it takes its turn in the line of hyper.
    """
    asked = await read_body(request, CompletionRequest, LATER_COMPLETION)
    engine = serving.engine(asked.model)
    options = options_of(asked, engine, hyper=hyper)
    questions, echoes = [], []
    for prompt in asked.prompts:
        raw = {"raw": True} if isinstance(prompt, str) else {}
        questions += [Question(prompt, {**each, **raw}) for each in options]
        echoes += [_echo(prompt, engine) if asked.echo else ""] * len(options)
    texts = None if asked.likeliest is None else TokenTexts(engine.tokenizer)
    form = TextForm(
        serving.head("cmpl", engine), echoes, texts, asked.likeliest, usage=asked.include_usage
    )
    return await answer(request, serving, asked, engine, questions, form, texts)


def _echo(prompt: str | list[int], engine: Engine) -> str:
    if isinstance(prompt, str):
        return prompt
    last = engine.facts.vocabulary - 1
    wrong = next((token for token in prompt if not 0 <= token <= last), None)
    if wrong is not None:
        raise APIError(
            400,
            f"token id {wrong} is not in the vocabulary: 0 to {last}",
            param="prompt",
            code="invalid_value",
        )
    return str(engine.tokenizer.decode(prompt))
