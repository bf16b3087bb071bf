"""Links of the pages that lead out of the documentation, like ../benchmarks/results/x.txt: to the repository.

On the site of a code host these links work as they are. In the built site they become links to the repository, after
a check that the file is there.
"""

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

ROOT = Path(__file__).parent.parent
REPOSITORY = "https://github.com/deepbdc/deepbdc/blob/main/"


def to_repository(app: Sphinx, document: nodes.document, page: str) -> None:
    """Turn links that leave the folder of the documentation into links to the repository."""
    folder = Path(app.srcdir, page).parent
    for link in list(document.findall(lambda node: isinstance(node, nodes.Element) and "reftarget" in node)):
        target = str(link["reftarget"]).partition("#")[0]
        path = (folder / target).resolve() if target and "://" not in target else None
        if path is None or not path.is_relative_to(ROOT) or path.is_relative_to(app.srcdir):
            continue
        there = next((one for one in (path, path.with_name(f"{path.name}.md")) if one.exists()), None)
        if there is None:
            raise ExtensionError(f"{page}: the link to {target} leads nowhere")
        found = nodes.reference("", "", refuri=REPOSITORY + there.relative_to(ROOT).as_posix())
        found += link.children
        link.replace_self(found)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("doctree-read", lambda app, document: to_repository(app, document, app.env.docname))
    return {"parallel_read_safe": True}
