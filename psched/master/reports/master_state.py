"""The states of a master."""

from enum import Enum


class MasterState(Enum):
    """What a master is doing."""

    STARTING = "starting"
    """No worker has read due rows yet, because handlers are being loaded or the database is
    unavailable."""
    SERVING = "serving"
    RELOADING = "reloading"
    PAUSED = "paused"
    STOPPING = "stopping"
