"""``deepbdc app`` as a command, and its server on a real socket."""

import http.client
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from deepbdc import FewShotClassifier
from deepbdc.app.pictures import NewPicture
from deepbdc.app.storage import Storage
from deepbdc.cli import main
from deepbdc.commands import app as commands
from deepbdc.commands.app import _address, _service, app
from deepbdc.errors import UserError
from deepbdc.web.protection import Door
from tests.app.drawing import picture


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": "0.0.0.0"}, "--host 0.0.0.0 lets other computers open this page: also give --token auto"),
        ({"host": "0.0.0.0", "token": "short"}, "the token has 5 characters: it must have 12 to 200"),
        ({"examples": Path("no/such/folder"), "port": 0}, "there is no no/such/folder"),
        ({"host": "no.such.host.invalid", "token": "auto"}, "cannot listen on no.such.host.invalid"),
        ({"port": 99999}, "choose another --port"),
    ],
)
def test_mistakes_end_with_a_message(options: dict[str, object], message: str) -> None:
    with pytest.raises((UserError, OSError), match=message):
        app(**options)  # type: ignore[arg-type]


def test_a_port_that_is_taken_ends_with_a_message() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="choose another --port"):
        app(port=taken.getsockname()[1])


def test_the_printed_address() -> None:
    assert _address(Door("127.0.0.1", 7860)) == "http://127.0.0.1:7860/"
    assert _address(Door("::1", 80, "secret")) == "http://[::1]:80/?token=secret"
    assert _address(Door("0.0.0.0", 80, "secret")) == f"http://{socket.gethostname()}:80/?token=secret"


def test_every_visitor_starts_with_the_given_examples(tmp_path: Path) -> None:
    for kind in ("disc", "stripes"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "one.png").write_bytes(picture(kind, 1))
    service = _service(Door("127.0.0.1", 7860), tmp_path)
    _, visitor = service.visitors.welcome()
    state = visitor.state()
    assert [(entry["name"], entry["pictures"][0]["name"]) for entry in state["classes"]] == [
        ("disc", "one.png"),
        ("stripes", "one.png"),
    ]
    visitor.classifier().save(tmp_path / "saved.safetensors")
    again = _service(Door("127.0.0.1", 7860), tmp_path / "saved.safetensors")
    _, other = again.visitors.welcome()
    assert list(other.classes.values()) == ["disc", "stripes"]
    (image,) = service.template.embed([picture("disc", 2)])
    other.add_picture(NewPicture(image), None)
    assert [prediction.label for prediction in other.predictions().values()] == ["disc"]


def test_visitors_use_the_own_classifier_of_a_saved_run(tmp_path: Path) -> None:
    from deepbdc.training.run import train
    from tests.training import tiny

    train(tiny.recipe("meta_deepbdc"), tmp_path / "run", data=tiny.write_data(tmp_path / "tiny.npz"), quiet=True)
    examples = [picture("disc", 1), picture("disc", 2), picture("stripes", 1), picture("stripes", 2)]
    labels = ["disc", "disc", "stripes", "stripes"]
    fitted = FewShotClassifier(tmp_path / "run").fit(examples, labels)
    fitted.save(tmp_path / "saved.safetensors")
    service = _service(Door("127.0.0.1", 7860), tmp_path / "saved.safetensors")
    _, visitor = service.visitors.welcome()
    asked = [picture("disc", 3), picture("stripes", 3)]
    assert np.array_equal(visitor.classifier().predict_proba(asked), fitted.predict_proba(asked))


def test_an_endless_upload_is_stopped(address: str) -> None:
    host, port = urlsplit(address).hostname, urlsplit(address).port
    connection = http.client.HTTPConnection(str(host), port, timeout=20)
    connection.request("GET", "/api/state")
    answer = connection.getresponse()
    answer.read()
    cookie = str(answer.getheader("set-cookie")).partition(";")[0]
    connection.putrequest("POST", "/api/pictures?name=endless.png")
    for name, value in {"cookie": cookie, "x-deepbdc": "1", "transfer-encoding": "chunked"}.items():
        connection.putheader(name, value)
    connection.endheaders()
    chunk, sent = b"\0" * 2**20, 0
    try:
        while sent < 200:
            connection.send(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            sent += 1
    except (BrokenPipeError, ConnectionResetError):
        pass
    else:
        assert connection.getresponse().status == 413
    assert sent < 100, "the server read far more than the 10 MB that it accepts"


Starting = Callable[..., tuple[Storage, list[str]]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Starting:
    """Start the command up to the point where the server would run. Return the storage, and what was opened."""

    def start(**options: object) -> tuple[Storage, list[str]]:
        opened: list[str] = []
        found: list[Storage] = []

        def service(door: Door, examples: object, storage: Storage) -> object:
            assert storage.root.is_dir() or storage.lasting
            found.append(storage)
            return object()

        def serve(service: object, listening: object, address: str | None) -> None:
            if address is not None:
                commands._open(address)

        class AtOnce:
            def __init__(self, target: Callable[..., object], args: tuple[str], daemon: bool) -> None:
                self.start = lambda: target(*args)

        monkeypatch.setattr(commands, "_service", service)
        monkeypatch.setattr(commands, "_serve", serve)
        monkeypatch.setattr(commands, "Thread", AtOnce)
        monkeypatch.setattr(commands.webbrowser, "open", opened.append)
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
        app(port=0, **options)  # type: ignore[arg-type]
        return found[0], opened

    return start


def test_the_browser_opens_by_itself_if_there_is_a_screen(
    started: Starting, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("DISPLAY", ":0")
    _, (address,) = started()
    assert address in capsys.readouterr().out
    assert started(open_browser=False)[1] == []
    assert started(host="0.0.0.0", token="auto")[1] == [], "a server for others has no person in front of it"
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert started()[1] == []


def test_the_options_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    main(["app", "--help"])
    help_text = capsys.readouterr().out
    assert "--no-open" in help_text
    with pytest.raises(SystemExit, match="--no-keep says not to keep it"):
        main(["app", "--no-open", "--no-keep", "--work", "somewhere"])


def test_where_the_work_is_kept(started: Starting, tmp_path: Path) -> None:
    usual, _ = started()
    assert (usual.root.is_relative_to(tmp_path / "data"), usual.lasting) == (True, True)
    others, _ = started(examples=tmp_path)
    assert others.root != usual.root, "what began with other examples is not shown"
    chosen, _ = started(work=tmp_path / "mine", host="0.0.0.0", token="auto")
    assert (chosen.root.parent, chosen.lasting) == (tmp_path / "mine", True)
    for options in ({"keep": False}, {"host": "0.0.0.0", "token": "auto"}):
        passing, _ = started(**options)
        assert not passing.lasting
        assert not passing.root.exists(), "it is deleted at the end"
    with pytest.raises(UserError, match="give one of them"):
        started(work=tmp_path, keep=False)
