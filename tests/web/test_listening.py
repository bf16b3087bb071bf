"""How a web server gets its token and its socket."""

import socket

import pytest

pytest.importorskip("starlette")
from deepbdc.errors import UserError
from deepbdc.web.listening import address_of, chosen_token, listening_at
from deepbdc.web.protection import Door


def test_a_server_that_others_can_reach_needs_a_token() -> None:
    assert chosen_token("127.0.0.1", None, "", "") is None
    with pytest.raises(UserError, match=r"--host 0\.0\.0\.0 is open: also give --token auto, so that it is closed"):
        chosen_token("0.0.0.0", None, "is open", "it is closed")
    with pytest.raises(UserError, match="the token has 5 characters"):
        chosen_token("127.0.0.1", "short", "", "")
    assert chosen_token("0.0.0.0", "a-long-enough_token", "", "") == "a-long-enough_token"
    made = {chosen_token("0.0.0.0", "auto", "", "") for _ in range(2)}
    assert len(made) == 2, "each is new"
    assert all(len(str(token)) >= 30 for token in made)


def test_a_free_port_is_chosen_and_a_taken_one_is_named() -> None:
    with listening_at("127.0.0.1", 0, None) as (door, listening):
        assert door == Door("127.0.0.1", listening.getsockname()[1])
        assert address_of(door) == f"http://127.0.0.1:{door.port}"
        socket.create_connection(("127.0.0.1", door.port)).close()
        with (
            pytest.raises(OSError, match=f"cannot listen on 127.0.0.1, port {door.port}"),
            listening_at("127.0.0.1", door.port, None),
        ):
            pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", door.port)).close()
