"""Settings of the documentation site: `make docs` builds it with Sphinx."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import deepbdc

project = "deepbdc"
copyright = "the deepbdc developers; Apache-2.0"
version = release = deepbdc.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "site_links"]
exclude_patterns = ["_build", "paper/*"]  # the tables of the paper stay files
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

html_theme = "furo"
html_title = "deepbdc"
html_static_path = ["_static"]
html_js_files = ["filter_table.js"]
html_css_files = ["site.css"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": False}
autodoc_mock_imports: list[str] = []
napoleon_google_docstring = True
