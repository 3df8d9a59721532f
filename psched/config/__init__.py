"""What an administrator can set: where it is read from, what it may be, what it means.

Read `settings` first: the table of every setting. A value reaches it in four steps, each
a module of its own: `document` (YAML as keys, values and lines), `reader` (which file,
which environment), `references` (``${VAR}``), `kinds` and `urls` (is it possible?).
"""

from psched.config.reader import from_mapping, load
from psched.config.settings import SETTINGS, Config, Setting

__all__ = ["SETTINGS", "Config", "Setting", "from_mapping", "load"]
