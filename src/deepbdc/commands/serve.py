"""``deepbdc serve``: a web service that classifies pictures for other programs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from deepbdc._optional import require
from deepbdc.commands.examples import ExampleSource
from deepbdc.commands.options import EstimatorOptions

if TYPE_CHECKING:
    from deepbdc.web.protection import Door


def serve_classifier(
    model: Path,
    /,
    *,
    host: Annotated[str, Parameter(metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[int, Parameter(metavar="NUMBER")] = 8000,
    token: Annotated[str | None, Parameter(metavar="SECRET")] = None,
    options: EstimatorOptions | None = None,
) -> None:
    """Start a web service that classifies pictures for other programs.

    For example, in two terminals:

        deepbdc serve birds.safetensors
        curl --data-binary @photo.jpg -H 'content-type: image/jpeg' http://127.0.0.1:8000/predict

    The answer is JSON: the label, its probability, the probabilities of all classes, and whether the picture looks
    like none of them. Several pictures go into one request as JSON. http://127.0.0.1:8000/openapi.json describes
    everything for programs. The service keeps nothing, and only this computer can use it unless you give --host.

    Args:
        model: A classifier saved by `deepbdc fit` (.safetensors), or a folder that contains one folder of example
            pictures for each class.
        host: The address to listen on. Any address other than one of this computer alone needs --token, too. The
            connection is not encrypted: use it in a network that you trust, or behind a server that encrypts.
        port: The port to listen on; 0 chooses a free one.
        token: A secret of at least 12 characters that programs must send in the header 'Authorization: Bearer
            SECRET', or 'auto' to create one, which is printed.
    """
    require("fastapi", "app")
    require("uvicorn", "app")
    from deepbdc.serving import create_service
    from deepbdc.web.listening import chosen_token, listening_at, run

    remedy = "only programs that know the token can"
    token = chosen_token(host, token, "lets other computers use this service", remedy)
    source = ExampleSource.find(model, options.given() if options else {})
    with listening_at(host, port, token) as (door, listening):
        service = create_service(source.classifier(), door)
        print(_greeting(door), flush=True)
        run(service, listening, most_connections=100)


def _greeting(door: "Door") -> str:
    from deepbdc.web.listening import address_of

    address = address_of(door)
    header = "" if door.token is None else f" -H 'authorization: Bearer {door.token}'"
    return (
        f"The service is at {address}/predict and is described at {address}/openapi.json\n"
        f"Try: curl --data-binary @PICTURE.jpg -H 'content-type: image/jpeg'{header} {address}/predict\n"
        "Press Ctrl-C to stop."
    )
