"""Ways to claim due rows, and which of them a server can do.

Each gives the same promise; they differ in what it costs, and in what a server must be able to
do. `choose` asks the server itself, not its name.
"""

from psched.stores.sql.claims.choice import choose
from psched.stores.sql.claims.strategy import Strategy, held_by

__all__ = ["Strategy", "choose", "held_by"]
