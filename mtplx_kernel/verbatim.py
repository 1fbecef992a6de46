"""Carry prompts past IPython's own rewriting: a final ``?`` asks no help, ``>>>`` is kept."""

from __future__ import annotations

import re

_CELL = re.compile(r"%%mtplx(?![\w?])[ \t]*(?P<options>.*)")
_ASK = re.compile(
    r"""(?P<head>[ \t]*(?:[^=%"'#]+=[ \t]*)?)%mtplx[ \t]+(?P<line>ask[ \t]+.*[^\\\s])[ \t]*\n?$"""
)


def keep_prompts(lines: list[str]) -> list[str]:
    """Turn ``%%mtplx`` cells and ``%mtplx ask`` lines into calls before IPython touches them.

    IPython strips ``>>>`` and ``In [1]:`` from every cell, and takes a line that ends in ``?``
    for a question about a Python name. A prompt must come through unharmed.

    Parameters
    ----------
    lines
        The cell's lines with their line ends.

    Returns
    -------
    list of str
        The same lines where there is no prompt in them.
    """
    start = next((n for n, line in enumerate(lines) if line.strip()), None)
    if start is None:
        return lines
    cell = _CELL.match(lines[start])
    if cell:
        options, body = cell["options"].strip(), "".join(lines[start + 1 :])
        return [f"get_ipython().run_cell_magic('mtplx', {options!r}, {body!r})\n"]
    if lines[start].startswith("%%"):
        return lines
    kept = list(lines)
    for row, line in enumerate(lines):
        ask = _ASK.match(line)
        if ask and _starts_statement(kept, row):
            kept[row] = f"{ask['head']}get_ipython().run_line_magic('mtplx', {ask['line']!r})\n"
    return kept


# While a user is still typing, IPython must see a cell magic to wait for its body.
keep_prompts.has_side_effects = True  # type: ignore[attr-defined]


def _starts_statement(lines: list[str], row: int) -> bool:
    """Whether this line is code, and not text inside a string that spans lines."""
    from IPython.core.inputtransformer2 import make_tokens_by_line

    statements = make_tokens_by_line(lines[: row + 1])
    starts = {
        next((token.start[0] for token in tokens if token.string.strip()), 0)
        for tokens in statements
    }
    return row + 1 in starts
