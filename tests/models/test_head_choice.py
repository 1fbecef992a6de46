"""What may be asked for as a head: checked before any work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mtplx_kernel.errors import InvalidRequest, ModelUnusable
from mtplx_kernel.models.head import check_choice

ALLOWED = "give 'auto', 'none', a distilled head.safetensors, or a folder with a head"


class BytesPath(os.PathLike[bytes]):
    """A path that is no text."""

    def __fspath__(self) -> bytes:
        return b"/"


@pytest.mark.parametrize("head", [None, b"/", 5, True, "", ["auto"], BytesPath()])
def test_a_head_that_is_no_text_and_no_path(head: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_choice(head)
    assert str(caught.value) == f"the head must be text or a path, not {head!r}: {ALLOWED}"


@pytest.mark.parametrize("head", ["nowhere", "~nouser/x", "AUTO", "\0", "x" * 5000, Path("no/x")])
def test_a_head_that_is_not_there_is_refused_before_any_work(head: str | Path) -> None:
    with pytest.raises(ModelUnusable) as caught:
        check_choice(head)
    assert str(caught.value) == f"there is no head at {str(head)!r}: {ALLOWED}"


def test_choices_that_may_be(tmp_path: Path) -> None:
    (tmp_path / "head.safetensors").touch()
    given = ["auto", "none", str(tmp_path), tmp_path / "head.safetensors"]
    assert [check_choice(head) for head in given] == [str(head) for head in given]
