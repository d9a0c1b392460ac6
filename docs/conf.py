"""Sphinx configuration."""

from __future__ import annotations

import zarrasync

project = "zarrasync"
author = "The zarrasync developers"
copyright = "2026, the zarrasync developers"
release = version = zarrasync.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "pydata_sphinx_theme"
html_title = "zarrasync"
html_theme_options = {"show_prev_next": False}
html_sidebars = {"**": []}
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
nitpicky = False
