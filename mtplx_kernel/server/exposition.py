"""Prometheus' text format: families of samples, and histograms."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a metric, and the labels that it has besides the model's.

    Attributes
    ----------
    suffix
        What is added to the metric's name, as for the parts of a histogram.
    """

    value: float
    labels: Mapping[str, str]
    suffix: str = ""


class Histogram:
    """How many values lie below each of some bounds.

    Parameters
    ----------
    bounds
        In rising order; a value that equals one counts as below it.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self, labels: Mapping[str, str]) -> list[Sample]:
        """The histogram as Prometheus has it: how many are below each bound, sum and count."""
        samples, below = [], 0
        for bound, count in zip([*map(_number, self._bounds), "+Inf"], self._counts, strict=True):
            below += count
            samples.append(Sample(below, {**labels, "le": bound}, "_bucket"))
        return [*samples, Sample(self._sum, labels, "_sum"), Sample(below, labels, "_count")]


def family(name: str, kind: str, told: str, samples: Iterable[Sample]) -> str:
    """A metric with all its samples; empty without any.

    Parameters
    ----------
    kind
        "counter", "gauge" or "histogram".
    told
        What it counts, for people.
    """
    lines = [
        f"{name}{sample.suffix}{_labels(sample.labels)} {_number(sample.value)}\n"
        for sample in samples
    ]
    if not lines:
        return ""
    return "".join([f"# HELP {name} {told}\n", f"# TYPE {name} {kind}\n", *lines])


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
