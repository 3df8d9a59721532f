"""The documentation site. bin/docs builds it with Sphinx from the pages in this folder."""

import psched

project = "psched"
html_title = "psched"
html_theme = "furo"
# Nothing is fetched, and the same source gives the same site.
html_last_updated_fmt = None
html_show_copyright = False

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["demo", "examples"]

# The anchors of headings are those that git hosts make, so that one link works there and here.
myst_heading_anchors = 4

# --- the reference of the API ---

# A name is imported when it is first used; autodoc lists only names that are there.
for _name in psched.__all__:
    getattr(psched, _name)

autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "imported-members": True}
# In docstrings, single backquotes mark names in the source, which the reference may not have.
default_role = "literal"

# Links between pages and their anchors must lead somewhere. Types that these pages do not describe
# are shown without a link: Python's own, and those of psched that no program needs to name.
nitpick_ignore_regex = [
    ("py:.*", r"(collections|contextlib|datetime|pathlib|re|signal|typing)\..*"),
    ("py:.*", r"psched(\.\w+){2,}"),
    # The same, where annotations are not evaluated when a module is imported.
    ("py:class", r"AbstractContextManager|Access|Alert|Author|Config|Confirm|Decide|Duration"),
    ("py:class", r"ListOrder|ManyChanged|Overview|Report|Since|Stagger|Store|Until|Wanted|When"),
    ("py:class", r"WorkerRecord|Zone"),
]
# The type hint `type` is Python's, and not the attribute of a task or of a run.
suppress_warnings = ["ref.python"]
