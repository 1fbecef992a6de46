"""Prometheus' text format, byte for byte."""

from __future__ import annotations

from mtplx_kernel.server.exposition import Histogram, Sample, family


def test_a_family_is_written_as_prometheus_reads_it() -> None:
    samples = [Sample(3, {"model": "a"}), Sample(0.25, {}), Sample(1e-7, {"x": "1", "y": "2"})]
    assert family("seconds", "gauge", "How long.", samples) == (
        "# HELP seconds How long.\n"
        "# TYPE seconds gauge\n"
        'seconds{model="a"} 3\n'
        "seconds 0.25\n"
        'seconds{x="1",y="2"} 1e-07\n'
    )


def test_a_family_without_samples_is_not_written() -> None:
    assert family("seconds", "gauge", "How long.", []) == ""


def test_values_of_labels_are_escaped() -> None:
    text = family("a", "counter", "b", [Sample(1, {"path": 'C:\\x "y"\nz'})])
    assert text.splitlines()[2:] == [r'a{path="C:\\x \"y\"\nz"} 1']


def test_a_histogram_counts_what_is_below_each_bound() -> None:
    histogram = Histogram((0.5, 1, 2))
    for value in (0.25, 0.5, 0.75, 1.5, 8.0):
        histogram.observe(value)
    assert family("t", "histogram", "T.", histogram.samples({"m": "x"})).splitlines()[2:] == [
        't_bucket{m="x",le="0.5"} 2',
        't_bucket{m="x",le="1"} 3',
        't_bucket{m="x",le="2"} 4',
        't_bucket{m="x",le="+Inf"} 5',
        't_sum{m="x"} 11',
        't_count{m="x"} 5',
    ]
