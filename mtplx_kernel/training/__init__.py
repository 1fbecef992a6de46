"""Distilling an MTP head from a model's own text."""
