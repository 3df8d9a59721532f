"""The settings: where they are read from, which values are valid, and how values are derived.

Read `settings` first: it declares all settings. A value passes through these modules:

1. `reader` chooses the file and the section in the file. `document` reads the file's YAML, and the
   line number of each key.
2. `reader` then reads each value with the `Kind` of its setting. `kinds` defines most kinds, `urls`
   and `monitoring` the others. `references` expands ``${VAR}``.
3. `rules` derives some settings from others, and finds contradictions between settings.
4. `problems` reports all problems in one error.
"""

from psched.config.reader import Files, from_mapping, load, raw_settings, read_raw
from psched.config.references import withhold
from psched.config.settings import OVERRIDES, SETTINGS, Config, Setting

__all__ = [
    "OVERRIDES",
    "SETTINGS",
    "Config",
    "Files",
    "Setting",
    "from_mapping",
    "load",
    "raw_settings",
    "read_raw",
    "withhold",
]
