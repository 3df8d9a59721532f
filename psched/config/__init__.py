"""What an administrator can set: where it is read from, what it may be, what it means.

Read `settings` first: the table of every setting. A value reaches it in five steps, each
a module of its own: `document` (YAML as keys, values and lines), `reader` (which file,
which environment), `references` (``${VAR}``), `kinds`, `per_type`, `input_files` and `urls` (is it
possible?), `combinations` and `tls` (is it beside the others?). `checking` has them done, and
tells what is wrong.
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
