"""Which requests the server refuses, and the headers of its responses."""

import pytest

from deepbdc.web.protection import Door, check_token, is_loopback
from tests.app.conftest import Serve, Visit

TOKEN = "a-long-enough_token"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7860", "127.0.0.1.evil.example", "", "[", "192.168.1.7"]
)
def test_other_host_names_are_refused(visit: Visit, host: str) -> None:
    answer = visit.client.get("/", headers={"host": host})
    assert answer.status_code == 421
    assert "deepbdc" not in answer.text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9999", "[::1]:7860"])
def test_own_host_names_are_accepted(visit: Visit, host: str) -> None:
    assert visit.client.get("/", headers={"host": host}).status_code == 200


def test_a_server_for_the_network_answers_to_ip_addresses_and_its_own_name() -> None:
    door = Door("0.0.0.0", 7860, TOKEN)
    assert door.knows_host("192.168.1.7:7860")
    assert not door.knows_host("evil.example")
    assert Door("box.example", 7860, TOKEN).knows_host("BOX.example:7860")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://evil.example", "x-deepbdc": "1"}, 403),
        ({"origin": "null", "x-deepbdc": "1"}, 403),
        ({"origin": "http://127.0.0.1:8080"}, 403),
        ({"origin": "http://127.0.0.1:7860"}, 200),
        ({"x-deepbdc": "1"}, 200),
    ],
)
def test_only_our_own_page_may_make_changes(visit: Visit, headers: dict[str, str], status: int) -> None:
    del visit.client.headers["X-Deepbdc"]
    assert visit.client.post("/api/classes", json={"name": "a"}, headers=headers).status_code == status
    assert len(visit.state()["classes"]) == (status == 200)


def test_with_a_token_every_request_needs_it(serve: Serve) -> None:
    clients = serve(token=TOKEN)
    client = clients()
    for path in ("/", "/static/page.js", "/api/state", f"/?token={TOKEN}x", "/?token=", "/?token=%ff", "/nothing"):
        assert client.get(path).status_code == 401, path
    refused = client.post(f"/api/classes?token={TOKEN}", json={"name": "a"}, headers={"x-deepbdc": "1"})
    assert refused.status_code == 401, "a token in the URL only opens the page"
    opened = client.get(f"/?token={TOKEN}")
    assert opened.status_code == 200
    assert "HttpOnly" in opened.headers["set-cookie"]
    assert client.get("/api/state").status_code == 200
    wrong = {"cookie": "deepbdc_token_7860=something-else"}
    assert clients().get("/api/state", headers=wrong).status_code == 401


def test_security_headers_of_every_response(visit: Visit) -> None:
    for path, status in {"/": 200, "/static/style.css": 200, "/api/state": 200, "/nothing": 404}.items():
        answer = visit.client.get(path)
        assert answer.status_code == status
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert visit.client.get("/", headers={"host": "evil.example"}).headers["x-frame-options"] == "DENY"


def test_scripts_and_other_sites_cannot_use_the_cookie_of_a_visitor(serve: Serve) -> None:
    client = serve()()
    cookie = client.get("/api/state").headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "set-cookie" not in client.get("/api/state").headers, "a known visitor keeps the cookie"
    made_up = client.get("/api/state", headers={"cookie": "deepbdc_visitor_7860=made-up"})
    assert "made-up" not in made_up.headers["set-cookie"]


@pytest.mark.parametrize(
    "path", ["/static/../server.py", "/static/%2e%2e/server.py", "/static/", "/docs", "/openapi.json"]
)
def test_no_other_files_are_served(visit: Visit, path: str) -> None:
    assert visit.client.get(path).status_code == 404


def test_tokens_and_addresses() -> None:
    assert check_token(TOKEN) == TOKEN
    for bad in ("short", "with spaces in between", "ümlaute-in-the-token", "x" * 201):
        with pytest.raises(ValueError, match="'--token auto' makes a good one"):
            check_token(bad)
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "192.168.0.1", "box")] == [False] * 4
