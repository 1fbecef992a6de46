"""mlx-lm's own stream_generate as a side: in this process, and in one with MLX's own BLAS.

`python -m benchmarks.peers FOLDER` is the other process: a request a line in, an answer a line out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from benchmarks.measure import BenchmarkFailed, Run
from benchmarks.weights import weight_bytes
from mtplx_kernel.models import blas
from mtplx_kernel.models.binding import BindingUnknown, bound_library

ROOT = Path(__file__).resolve().parents[1]
Answer = TypeVar("Answer")


class MlxLm:
    """A model under mlx-lm alone. Load it and use it on one thread.

    Weights are prepared as the engine prepares its own: float32 without quantisation on the CPU,
    as stored on GPUs.

    Parameters
    ----------
    folder
        An mlx-lm model folder.

    Attributes
    ----------
    weight_bytes
        Bytes of weights that decoding one token reads.
    """

    def __init__(self, folder: Path) -> None:
        import mlx.core as mx
        from mlx_lm.utils import load_model, load_tokenizer

        from mtplx_kernel.models.load import dense

        self._model, config = load_model(folder)
        if mx.default_device().type == mx.DeviceType.cpu:
            self._model = dense(self._model)
        self._tokenizer = load_tokenizer(folder)
        self._tokenizer.eos_token_ids = ()  # every side goes on past the end token
        self.weight_bytes = weight_bytes(self._model, config)

    def run(self, prompt_ids: Sequence[int], max_tokens: int) -> Run:
        """Answer greedily; the clock runs from the call to each token's arrival."""
        import mlx.core as mx
        from mlx_lm.generate import generation_stream, stream_generate

        ids: list[int] = []
        arrivals: list[float] = []
        started = time.perf_counter()
        for response in stream_generate(
            self._model, self._tokenizer, list(prompt_ids), max_tokens=max_tokens
        ):
            arrivals.append(time.perf_counter())
            ids.append(response.token)
        # mlx-lm starts one forward more than it needs: it must not run into the next side's time.
        mx.synchronize(generation_stream)
        return Run(tuple(ids), arrivals[0] - started, arrivals[-1] - arrivals[0])

    def margin(self, ids: Sequence[int]) -> float:
        """Difference between the two largest logits after `ids`."""
        import mlx.core as mx

        logits = self._model(mx.array([list(ids)]))[0, -1].astype(mx.float32)
        largest = mx.topk(logits, 2)
        return abs((largest[0] - largest[1]).item())


class ThreadPeer:
    """mlx-lm in this process, on a thread of its own: MLX's lazy arrays belong to their thread."""

    name = "mlx_lm"

    def __init__(self, folder: Path) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mlx-lm")
        self._peer: MlxLm | None = None
        self._do(lambda: self._load(folder))

    def run(self, prompt_ids: Sequence[int], max_tokens: int) -> Run:
        """See `MlxLm.run`."""
        return self._do(lambda: self._loaded.run(prompt_ids, max_tokens))

    def margin(self, ids: Sequence[int]) -> float:
        """See `MlxLm.margin`."""
        return self._do(lambda: self._loaded.margin(ids))

    @property
    def weight_bytes(self) -> int:
        """See `MlxLm`."""
        return self._loaded.weight_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._release)
        self._thread.shutdown()

    @property
    def _loaded(self) -> MlxLm:
        assert self._peer is not None
        return self._peer

    def _do(self, work: Callable[[], Answer]) -> Answer:
        return self._thread.submit(work).result()

    def _load(self, folder: Path) -> None:
        self._peer = MlxLm(folder)

    def _release(self) -> None:
        import mlx.core as mx

        self._peer = None
        mx.clear_cache()
        mx.clear_streams()


class ProcessPeer:
    """mlx-lm in another process, where MLX keeps the BLAS that it was installed with.

    Attributes
    ----------
    blas
        What computes matrix products there, as that process says.
    """

    name = "mlx_lm_stock"

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, blas.OPT_OUT_VARIABLE: "stock"},
        )
        try:
            self.blas = str(self._answer()["blas"])
        except BaseException:
            self._process.kill()
            self._process.communicate()
            raise

    def run(self, prompt_ids: Sequence[int], max_tokens: int) -> Run:
        """See `MlxLm.run`; the times are the other process's own.

        Raises
        ------
        BenchmarkFailed
            If that process has died.
        """
        assert self._process.stdin is not None
        try:
            print(json.dumps([list(prompt_ids), max_tokens]), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise self._died() from None
        answer = self._answer()
        return Run(**{**answer, "ids": tuple(answer["ids"])})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._process.kill()
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._died()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _died(self) -> BenchmarkFailed:
        code = self._process.wait()
        return BenchmarkFailed(
            f"the process that runs mlx-lm with MLX's own BLAS ended with code {code}; "
            "its own message is above"
        )


def stock_blas() -> str:
    """What computes matrix products in a process that gave MLX no other BLAS."""
    status = blas.ensure()
    if status.kind != "stock":
        return status.description
    try:
        bound = bound_library()
    except BindingUnknown:
        return status.description
    return status.description if bound is None else f"as installed: {bound.name}"


def serve(folder: Path) -> None:
    """Answer requests on standard input until it ends."""
    # Libraries may print; only answers may reach the pipe.
    answers, sys.stdout = sys.stdout, sys.stderr
    peer = MlxLm(folder)
    print(json.dumps({"blas": stock_blas()}), file=answers, flush=True)
    for line in sys.stdin:
        prompt_ids, max_tokens = json.loads(line)
        print(json.dumps(asdict(peer.run(prompt_ids, max_tokens))), file=answers, flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
