"""Scripts for sh that start process trees which are hard to kill; each ends by itself in time."""

SUBPROCESSES = "sleep 1000 & sh -c 'sleep 1000 & sleep 1000 & wait' & wait"
DAEMONS = "for i in 1 2 3; do setsid sh -c 'setsid sleep 1000 & setsid sleep 1000 &'; done"
STOPPED = "sleep 1000 & kill -STOP $!; kill -STOP $$"
DEAF = "trap '' TERM INT HUP; setsid sh -c 'sleep 1000; sleep 1000' & sleep 1000"
REGROUPED = "set -m; sleep 1000 & sh -c 'sleep 1000 & wait' & set +m; sleep 1000"

STORM = "f() { [ $1 -gt 9 ] && exec sleep 1000; f $(($1 + 1)) & f $(($1 + 1)) & }; f 1; wait"
"""A thousand processes: each forks two and exits."""

COMET = "f() { [ $1 -gt 30000 ] && exit; f $(($1 + 1)) & exit; }; f 1 & exec sleep 1000"
"""One process that forks and exits, and so has ever new pids, for some seconds."""

WEED = "while [ $((n += 1)) -lt 30000 ]; do setsid sh -c 'sleep 1000 &'; done"
"""Starts daemons until it is killed."""

METEORS = (
    "f() { [ $1 -gt 5000 ] && exit; f $(($1 + 1)) & [ $(($1 % 50)) = 0 ] && sleep 1000 & exit; };"
    " for i in 1 2 3 4; do f 1 & done; sleep 1000"
)
"""Four that fork and exit as fast as they can, and leave some processes that stay."""

SCRIPTS = {
    "subprocesses": SUBPROCESSES,
    "daemons": DAEMONS,
    "stopped": STOPPED,
    "deaf": DEAF,
    "regrouped": REGROUPED,
    "storm": STORM,
    "comet": COMET,
    "weed": WEED,
    "meteors": METEORS,
}
