"""A button of the controls works while a cell runs, in kernels that know subshells."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ipython.test_kernel import LIMIT_S, Message, started

CONTROLS = "get_ipython().magics_manager.registry['MtplxMagics'].views._open['controls']._controls"


def test_cancel_all_ends_the_cell_that_runs(tiny_folder: Path) -> None:
    kernel = started()
    try:
        kernel.run(f"%load_ext mtplx_kernel\n%mtplx load '{tiny_folder}'\n%mtplx show controls")
        client = kernel.client
        asked = client.session.msg("create_subshell_request", {})
        client.control_channel.send(asked)
        made = client.get_control_msg(timeout=LIMIT_S)["content"]
        if made["status"] != "ok":
            pytest.skip("this ipykernel knows no subshells")
        button = kernel.value(f"{CONTROLS}.queue.all.comm.comm_id").strip("'")
        click = client.session.msg(
            "comm_msg",
            {"comm_id": button, "data": {"method": "custom", "content": {"event": "click"}}},
        )
        click["header"]["subshell_id"] = made["subshell_id"]
        sent: list[Message] = []

        def press(message: Message) -> None:
            if message["msg_type"] == "stream" and not sent:
                sent.append(message)
                client.shell_channel.send(click)

        # Without the button it would end by itself, but not as cancelled.
        ran = kernel.run("%%mtplx --raw --max-tokens 2500\nabcabcabc", press)
        (result,) = ran.contents("execute_result")
        assert result["data"]["text/plain"].startswith("<cancelled: ")
    finally:
        kernel.client.stop_channels()
        kernel.manager.shutdown_kernel(now=True)
