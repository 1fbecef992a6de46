"""What an endpoint may be opened with; every refusal says what is allowed, and no secret."""

from __future__ import annotations

from typing import Any

import pytest

from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.server.settings import Settings


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"host": ""}, "host must be an address or a name, not ''"),
        ({"host": None}, "host must be an address or a name, not None"),
        ({"port": -1}, "port must be 0 to 65535"),
        ({"port": 65_536}, "port must be 0 to 65535"),
        ({"port": True}, "port must be 0 to 65535"),
        ({"port": "80"}, "not '80'"),
        ({"token": ""}, "1 to 512 visible ASCII characters"),
        ({"token": "two words"}, "1 to 512 visible ASCII characters"),
        ({"token": "x" * 513}, "1 to 512 visible ASCII characters"),
        ({"token": "schlüssel"}, "1 to 512 visible ASCII characters"),
        ({"token": True}, "None to have one drawn, or False to ask for none, not bool"),
        ({"cors": ("localhost:3000",)}, "without a path, or *, not 'localhost:3000'"),
        ({"cors": ("http://localhost:3000/",)}, "without a path"),
        ({"cors": ("null",)}, "not 'null'"),
        ({"cors": "http://localhost"}, "a list of origins"),
        ({"body_limit": 0}, "body_limit must be a whole number of at least 1, not 0"),
        ({"header_limit": 1.5}, "not 1.5"),
        ({"connection_limit": True}, "not True"),
        ({"header_timeout_s": 0}, "header_timeout_s must be seconds, more than 0, not 0"),
        ({"body_timeout_s": float("nan")}, "not nan"),
        ({"stall_timeout_s": float("inf")}, "not inf"),
    ],
)
def test_what_is_of_no_use_is_refused_in_one_line(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        Settings(**wrong)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("secret", ["a secret", "geheimnisvoll-ü"])
def test_neither_repr_nor_refusal_shows_the_token(secret: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        Settings(token=secret)
    assert secret not in str(refusal.value)
    assert "good-secret" not in repr(Settings(token="good-secret"))


def test_what_is_of_use_is_taken() -> None:
    origins = ("http://localhost:3000", "https://a.example", "vscode-webview://x1", "*")
    found = Settings(host="::1", port=65_535, token="~!", cors=origins)
    assert (found.host, found.port, found.token, found.cors) == ("::1", 65_535, "~!", origins)
