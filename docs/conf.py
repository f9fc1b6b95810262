"""The documentation site: `make docs` builds it into out/docs. No page asks another host for anything."""

from __future__ import annotations

from importlib.metadata import version as installed
from pathlib import Path

from kvassay.cli.app import app as commands

project = "kvassay"
author = "the kvassay developers"
copyright = "the kvassay developers, Apache-2.0"
version = release = installed("kvassay")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
# Pages link to files of the repository, which are no pages of the site.
suppress_warnings = ["myst.xref_missing"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
# Written from the commands themselves at every build, so it cannot fall behind; git ignores it.
(Path(__file__).parent / "reference" / "cli.md").write_text(commands.generate_docs(output_format="markdown"))

html_theme = "furo"
html_title = "kvassay"
html_show_sphinx = False
