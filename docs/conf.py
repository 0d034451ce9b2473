"""How Sphinx builds the site: `make docs`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import _reference  # noqa: E402

from vizoo import __version__  # noqa: E402

project, author, release = "vizoo", "the vizoo team", __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "reference/gallery",
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,
    "within_subsection_order": "FileNameSortKey",
}
exclude_patterns = ["_build", "gallery"]
html_theme = "furo"
pygments_dark_style = "monokai"
highlight_language = "none"  # blocks without a language are command lines
html_title = f"vizoo {release}"
html_show_copyright = False
html_static_path = []
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
smartquotes = False  # two hyphens begin an option
# What stands between single backticks in a docstring is code.
default_role = "code"
napoleon_use_ivar = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
copybutton_prompt_text = r">>> |\$ "
copybutton_prompt_is_regexp = True


_attributes = {}


def plain_bars(app, what, name, thing, options, lines):
    """Bars are absolute values in docstrings, not substitutions."""
    lines[:] = [line.replace("|", "\\|") for line in lines]


def hold(app, what, name, thing, options, lines):
    """Napoleon takes what precedes a colon in an attribute's text for its type: not here."""
    if what in ("attribute", "data", "property"):
        _attributes[name], lines[:] = lines[:], []


def give_back(app, what, name, thing, options, lines):
    """What `hold` held."""
    lines.extend(_attributes.pop(name, []))


def setup(app):
    """Write the pages that are made of the code itself before any is read."""
    app.connect("autodoc-process-docstring", plain_bars, priority=300)
    app.connect("autodoc-process-docstring", hold, priority=400)
    app.connect("autodoc-process-docstring", give_back, priority=600)
    app.connect("builder-inited", lambda app: _reference.write(HERE / "reference"))
    app.connect("build-finished", _reference.write_llms)
