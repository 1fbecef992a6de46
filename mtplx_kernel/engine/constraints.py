"""From a JSON schema or a grammar to what masks tokens: compiled once, checked and bounded.

The grammar library is imported with the first request that needs it. Compiling takes from a
millisecond to a second or so, and happens on the caller's thread; on the owner thread a request
only ever fills masks, each within the library's own limits.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from mtplx_kernel.decoding.params import SamplingParams
from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.models.load import ModelFacts

if TYPE_CHECKING:
    import mlx.core as mx
    from llguidance import LLMatcher, LLTokenizer

LARGEST = 20_000
"""Symbols of a grammar: some 2000 properties. What compiling takes grows with their square."""
KEPT = 32
"""Compiled grammars that are kept for the requests to come."""
JSON_STYLE = {"whitespace_pattern": r"\n?[ \t]{0,16}"}
"""JSON may be indented, but not without an end: a model may like blanks."""
LONGEST_REASON = 300
STACK_BYTES = 256 * 2**20
"""Address space, not memory: a schema of the longest text needs less than half of it."""
NAME = "<|\ue000{}|>"
"""What special tokens are called to the library, by id."""

Answer = TypeVar("Answer")
_STACK = threading.Lock()


class GrammarConstraint:
    """Where one answer stands in a grammar (owner thread).

    Parameters
    ----------
    matcher
        The grammar's state, of this answer alone.
    vocabulary
        How many ids the model has.
    """

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    @property
    def complete(self) -> bool:
        """Whether nothing can follow but the end."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def error(self) -> str | None:
        """Why it cannot go on, once that is so; the library then stops as at an end."""
        if not self._matcher.is_error():
            return None
        return f"the grammar cannot go on: {_reason(self._matcher.get_error())}"

    def allowed(self, drafts: Sequence[int]) -> mx.array:
        """Which ids may come next, and which after each of some drafts."""
        import mlx.core as mx
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

        from mtplx_kernel.decoding.constraint import unpacked

        matcher, taken = self._matcher, 0
        words = allocate_token_bitmask(len(drafts) + 1, self._vocabulary)
        fill_next_token_bitmask(matcher, words, 0)
        # An end is not fed: the library does not take it back in every state.
        right = matcher.validate_tokens(list(drafts)) if drafts else 0
        for draft in drafts[:right]:
            matcher.consume_token(draft)
            taken += 1
            if matcher.is_stopped():
                break
            fill_next_token_bitmask(matcher, words, taken)
        if taken:
            matcher.rollback(taken)
        return unpacked(mx.array(words.view("uint32")), self._vocabulary)

    def forced(self, most: int) -> list[int]:
        """At most so many ids that are likely next, as the text can go on in one way only."""
        return self._matcher.compute_ff_tokens()[:most]

    def advance(self, token: int) -> str | None:
        """Take the answer's next token; if it may not come, why."""
        self._matcher.consume_token(token)
        return self.error


class Compiled:
    """A grammar that a model's answers can be held to. Safe to use from any thread."""

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    def start(self) -> GrammarConstraint:
        """The state of a new answer."""
        return GrammarConstraint(self._matcher.deep_copy(), self._vocabulary)


class Constraints:
    """Compiles what answers of one model are to be. Safe to use from any thread.

    Parameters
    ----------
    tokenizer
        The model's, as mlx-lm wraps it.
    facts
        The model's vocabulary and end tokens.
    """

    def __init__(self, tokenizer: Any, facts: ModelFacts) -> None:
        self._tokenizer = tokenizer
        self._facts = facts
        self._read: LLTokenizer | None = None
        self._reading = threading.Lock()
        self._known: OrderedDict[tuple[str | None, str | None], Compiled] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, params: SamplingParams) -> Compiled | None:
        """What a request's answer is held to; None where it is free.

        Raises
        ------
        InvalidRequest
            If the schema or the grammar cannot be compiled, or the model's tokens not be read.
        """
        key = (params.json_schema, params.grammar)
        if key == (None, None):
            return None
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        compiled = self._compile(*key)
        with self._lock:
            self._known[key] = compiled
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        return compiled

    def _compile(self, schema: str | None, grammar: str | None) -> Compiled:
        name = "grammar" if schema is None else "json_schema"
        tokenizer = self._tokens(name)
        matcher, error = _on_a_deep_stack(lambda: _matcher(tokenizer, schema, grammar))
        if matcher is None:
            raise InvalidRequest(f"{name} cannot be used: {_reason(error)}")
        return Compiled(matcher, self._facts.vocabulary)

    def _tokens(self, name: str) -> LLTokenizer:
        """The model's tokens as the library reads them: a second's work, done once."""
        with self._reading:
            if self._read is None:
                self._read = self._read_tokens(name)
            return self._read

    def _read_tokens(self, name: str) -> LLTokenizer:
        ends = sorted(i for i in self._facts.end_ids if i < self._facts.vocabulary)
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None or not ends:
            lacks = "end token" if backend is not None else "tokenizer.json"
            raise InvalidRequest(f"{name} is not to be had: {self._facts.name} has no {lacks}")
        from llguidance import LLTokenizer

        try:
            text, renamed = _renamed(backend.to_str())
            found = LLTokenizer(text, n_vocab=self._facts.vocabulary, eos_token=ends)
            lost = [token for token in renamed if not found.is_special_token(token)]
            if lost:
                raise ValueError(f"token {lost[0]} has no place in them")
        except (LookupError, TypeError, ValueError) as error:
            raise InvalidRequest(
                f"{name} is not to be had: the tokens of {self._facts.name} cannot be read: "
                f"{_reason(str(error))}"
            ) from error
        return found


def _matcher(
    tokenizer: LLTokenizer, schema: str | None, grammar: str | None
) -> tuple[LLMatcher | None, str]:
    """A schema or a grammar, compiled, or why it cannot be."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(max_grammar_size=LARGEST, verbose_errors=False)
    if schema is None:
        text = LLMatcher.grammar_from_lark(grammar or "")
    else:
        try:
            text = LLMatcher.grammar_from_json_schema(schema, overrides=JSON_STYLE)  # type: ignore[arg-type]
        except ValueError as error:
            return None, str(error)
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=limits)
    if not matcher.is_error():
        matcher.compute_bitmask()  # what the first mask takes, or lacks, shows here
    return (None, matcher.get_error()) if matcher.is_error() else (matcher, "")


def _on_a_deep_stack(work: Callable[[], Answer]) -> Answer:
    """Run a function in a thread of its own with room for any recursion.

    The library follows references by recursion, so that some thousands of them in a row would
    overflow a usual stack, and end the process.
    """
    answer: Future[Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # raised again where it is waited for
            answer.set_exception(error)

    with _STACK:
        usual = threading.stack_size(STACK_BYTES)
        try:
            thread = threading.Thread(target=run, name="mtplx-grammar", daemon=True)
            thread.start()
        finally:
            threading.stack_size(usual)
    return answer.result()


def _renamed(tokenizer: str) -> tuple[str, list[int]]:
    """A tokenizer.json whose special tokens have names that no text holds, and their ids.

    The library would else read a text that is spelled like one, such as a schema's own "<s>", as
    that token, and then not take it for the text.
    """
    found = json.loads(tokenizer)
    names: dict[str, str] = {}
    ids = []
    for token in found["added_tokens"]:
        written = token["content"]
        if token["special"] or (written.startswith("<") and written.endswith(">")):
            names[written] = token["content"] = NAME.format(token["id"])
            token["special"], token["normalized"] = True, False
            ids.append(token["id"])
    model = found["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(name, name): i for name, i in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(name, name), score] for name, score in model["vocab"]]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    found["post_processor"] = found["padding"] = found["truncation"] = None
    return json.dumps(found), ids


def _reason(error: str) -> str:
    """The library's complaint in a line, without the grammar that it repeats."""
    lines = error.splitlines() or [""]
    said = re.sub(r"^at \d+\(\d+\): ", "", lines[0]).strip()
    return "no text fits it" if said.startswith("NoExtension") else said[:LONGEST_REASON]
