"""Tests of the benchmarks: what they compute, and that they cannot be fooled."""
