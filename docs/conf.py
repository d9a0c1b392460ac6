"""Sphinx configuration."""

from __future__ import annotations

import zarrasync

project = "zarrasync"
author = "The zarrasync developers"
copyright = "2026, the zarrasync developers"
release = version = zarrasync.__version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
exclude_patterns = ["_build", "examples"]
html_theme = "pydata_sphinx_theme"
html_title = "zarrasync"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_sidebars = {  # pages without sections would show an empty sidebar
    page: []
    for page in (
        "api",
        "comparison",
        "consistency",
        "design",
        "development",
        "errors",
        "extending",
        "faq",
        "formats",
        "getting-started",
        "migration",
        "status",
    )
}
html_theme_options = {
    "show_prev_next": False,
    "navigation_with_keys": False,
    "footer_end": [],
}
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "force"  # the notebooks are kept without outputs
nb_execution_in_temp = (
    True  # notebooks create files, which would be in the way of the next build
)
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_merge_streams = True
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
nitpicky = False
