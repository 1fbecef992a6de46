"""What is sent for a prompt, and what is refused before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from mtplx_kernel.client.calls import Call, Settings, conversation
from mtplx_kernel.errors import InvalidRequest

MESSAGES = [{"role": "user", "content": "Hi"}]


def settings(**fields: Any) -> Settings:
    defaults = {
        "base_url": "http://127.0.0.1:8000",
        "model": "tiny",
        "concurrency_mode": "mtp",
        "max_batch_size": 8,
        "token": None,
        "timeout": 600.0,
    }
    return Settings(**{**defaults, **fields})


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("https://host/api/v1/", "https://host/api"),
        (" http://[::1]:80/v1 ", "http://[::1]:80"),
    ],
)
def test_an_address_may_end_in_v1(given: str, kept: str) -> None:
    assert settings(base_url=given).base_url == kept


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://127.0.0.2", True),
        ("http://[::1]:80", True),
        ("http://LOCALHOST:80", True),
        ("http://192.168.0.1", False),
        ("https://localhost.example.org", False),
    ],
)
def test_what_is_on_this_machine(url: str, local: bool) -> None:
    assert settings(base_url=url).local is local


@pytest.mark.parametrize(
    ("mode", "lane", "extra"),
    [
        ("mtp", "/v1", {"generation_mode": "mtp"}),
        ("ar", "/v1", {"generation_mode": "ar"}),
        ("hyper", "/v1/hyper", {}),
        (None, "/v1", {}),
    ],
)
def test_the_route_and_the_mode(mode: str | None, lane: str, extra: dict[str, Any]) -> None:
    made = settings(concurrency_mode=mode)
    assert made.call("Once", {"max_tokens": 5}) == Call(
        "POST",
        f"{lane}/completions",
        {"prompt": "Once", "model": "tiny", "max_tokens": 5, **extra},
        mode_unasked=bool(extra),
    )
    assert made.call((1, 2), {}).body == {"prompt": [1, 2], "model": "tiny", **extra}
    chat = made.call(MESSAGES, {})
    assert (chat.method, chat.path) == ("POST", f"{lane}/chat/completions")
    assert chat.body == {"messages": MESSAGES, "model": "tiny", **extra}


def test_options_override_and_none_leaves_one_out() -> None:
    options = {"generation_mode": "ar", "seed": None, "model": "other"}
    assert settings().call("Once", options).body == {
        "prompt": "Once",
        "model": "other",
        "generation_mode": "ar",
    }


def test_a_stream_asks_for_its_usage() -> None:
    call = settings(concurrency_mode=None, model=None).call("Once", {}, streamed=True)
    assert call.body == {
        "prompt": "Once",
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_text_is_sent_as_utf_8() -> None:
    assert Call("POST", "/", {"prompt": "Où ? 🦀"}).content == '{"prompt": "Où ? 🦀"}'.encode()
    assert Call("GET", "/status").content is None


def test_a_conversation_from_text() -> None:
    assert conversation("Hi", None) == MESSAGES
    system = {"role": "system", "content": "Be brief."}
    assert conversation(MESSAGES, "Be brief.") == [system, *MESSAGES]


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"base_url": "127.0.0.1:8000"}, "base_url must be an address such as http"),
        ({"base_url": "ftp://host"}, "not 'ftp://host'"),
        ({"base_url": "http://"}, "not 'http://'"),
        ({"base_url": "http://host:x"}, "not 'http://host:x'"),
        ({"base_url": "http://[::1"}, "base_url must be an address"),
        ({"base_url": "http://host?a=1"}, "base_url must be an address"),
        ({"base_url": None}, "base_url must be an address such as .*, not None"),
        ({"base_url": "http://me:secret@host"}, "no user name and no password"),
        ({"model": ""}, "model must be a name, or None, not ''"),
        ({"model": 3}, "model must be a name, or None, not 3"),
        ({"concurrency_mode": "fast"}, "one of mtp, ar, hyper, or None, not 'fast'"),
        ({"max_batch_size": 0}, "max_batch_size must be a whole number, 1 or more, not 0"),
        ({"max_batch_size": True}, "max_batch_size must be a whole number, 1 or more, not True"),
        ({"timeout": 0}, "timeout must be seconds above 0, or None, not 0"),
        ({"timeout": float("nan")}, "timeout must be seconds above 0, or None, not nan"),
        ({"token": ""}, "token must be printable ASCII"),
        ({"token": "a\r\nX: b"}, "token must be printable ASCII"),
        ({"token": "clé"}, "token must be printable ASCII"),
    ],
)
def test_settings_that_are_refused(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(InvalidRequest, match=line) as caught:
        settings(**fields)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("prompt", [None, 3, b"Once", [], (), [1, "a"], [True], [1.5], {"a": 1}])
def test_what_is_no_prompt(prompt: Any) -> None:
    with pytest.raises(InvalidRequest, match="a prompt must be text, a list of messages"):
        settings().call(prompt, {})


def test_what_no_call_can_be_made_of() -> None:
    with pytest.raises(InvalidRequest, match="a list of texts is several prompts: batch_generate"):
        settings().call(["Once", "Twice"], {})
    with pytest.raises(InvalidRequest, match="stream is no option: generate, stream and chat"):
        settings().call("Once", {"stream": True})
    with pytest.raises(InvalidRequest, match="messages is no option"):
        settings().call("Once", {"messages": MESSAGES})
    with pytest.raises(InvalidRequest, match="the text of one answer: n must be 1"):
        settings().call("Once", {"n": 2}, streamed=True)
    with pytest.raises(InvalidRequest, match="chat takes text or a list of messages"):
        conversation([1, 2], None)  # type: ignore[list-item]


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, "\ud800"])
def test_what_json_cannot_hold(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="the request cannot be written as JSON: "):
        _ = settings().call("Once", {"temperature": value}).content


def test_the_token_is_not_shown() -> None:
    made = settings(token="secret")
    assert made.headers == {"Authorization": "Bearer secret"}
    assert "secret" not in repr(made)
    assert made.description == "http://127.0.0.1:8000: mode mtp, model tiny"
    assert settings().headers == {}
