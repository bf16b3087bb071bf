"""Links of the pages that lead out of the documentation, like ../benchmarks/results/x.txt: to the files beside it.

In the repository these links work as they are. The built site lies two folders deeper, in docs/_build; the links are
changed accordingly, after a check that the file is there.
"""

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

ROOT = Path(__file__).parent.parent
FROM_SITE = "../../"
"""From a page in docs/_build to the root of the repository."""


def out_of_the_site(app: Sphinx, document: nodes.document, page: str) -> None:
    """Turn links that leave the folder of the documentation into links that work from the built site."""
    folder = Path(app.srcdir, page).parent
    for link in list(document.findall(lambda node: isinstance(node, nodes.Element) and "reftarget" in node)):
        target = str(link["reftarget"]).partition("#")[0]
        path = (folder / target).resolve() if target and "://" not in target else None
        if path is None or not path.is_relative_to(ROOT):
            continue
        if path.is_relative_to(app.srcdir) and not path.is_relative_to(Path(app.srcdir, "paper")):
            continue  # a page of the site
        there = next((one for one in (path, path.with_name(f"{path.name}.md")) if one.exists()), None)
        if there is None:
            raise ExtensionError(f"{page}: the link to {target} leads nowhere")
        found = nodes.reference("", "", refuri=FROM_SITE + there.relative_to(ROOT).as_posix())
        found += link.children
        link.replace_self(found)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("doctree-read", lambda app, document: out_of_the_site(app, document, app.env.docname))
    return {"parallel_read_safe": True}
