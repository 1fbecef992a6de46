"""``%mtplx serve`` and ``%mtplx stop``: the loaded model, asked by other programs over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtplx_kernel import options
from mtplx_kernel.grammar import named_as_options
from mtplx_kernel.prompt_magics import PromptMagics
from mtplx_kernel.serve_options import SERVE_OPTIONS, said_plainly, serve_settings

if TYPE_CHECKING:
    from mtplx_kernel.server.thread import Endpoint


class EndpointMagics(PromptMagics):
    """The part of the magics that serves the engine; what is loaded later is served too."""

    def _serve(self, words: list[str]) -> Endpoint:
        given, _ = options.read_words("serve", words, most=0)
        wishes = serve_settings(given)
        engine = self._engine()
        with named_as_options(SERVE_OPTIONS), said_plainly():
            endpoint = self._engines.serve(**wishes)
        # Outputs are saved with the notebook, so none of them shows the token.
        key = "mtplx_kernel.current_endpoint().token" if endpoint.token else "any text"
        print(f"Serving {engine.name} at {endpoint.url} until %mtplx stop.")
        print(f"OpenAI's clients take {endpoint.url}/v1 as base_url and {key} as api_key.")
        return endpoint

    def _stop(self, words: list[str]) -> None:
        options.read_words("stop", words, most=0)
        ended = self._engines.stop()
        print(f"Stopped serving at {ended.url}." if ended else "Nothing is served.")
