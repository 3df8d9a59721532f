"""The settings: where they are read from, which values are valid, and how values are derived.

Read `settings` first: the table of every setting. A value passes through these modules:

1. `reader` chooses the file and the section in it, and `document` reads the YAML, with lines.
2. `checking` reads each value with the `Kind` of its setting. `kinds` holds the simple kinds;
   `input_files`, `per_type` and `urls` (with `redis_urls`) hold the other kinds. `references`
   expands ``${VAR}``.
3. `rules` derives settings from others and finds contradictions between them.
4. `problems` reports all problems in one error.

`tls` converts the settings for encryption to a `Tls` object.
"""

from psched.config.checking import Setting
from psched.config.per_type import OVERRIDES
from psched.config.reader import from_mapping, load, raw_settings, read_raw
from psched.config.references import withhold
from psched.config.settings import SETTINGS, Config

__all__ = [
    "OVERRIDES",
    "SETTINGS",
    "Config",
    "Setting",
    "from_mapping",
    "load",
    "raw_settings",
    "read_raw",
    "withhold",
]
