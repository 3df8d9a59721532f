"""Process trees that are hard to kill, as scripts for sh; each ends by itself after a while."""

SUBPROCESSES = "sleep 1000 & sh -c 'sleep 1000 & sleep 1000 & wait' & wait"
DAEMONS = "for i in 1 2 3; do setsid sh -c 'setsid sleep 1000 & setsid sleep 1000 &'; done"
STOPPED = "sleep 1000 & kill -STOP $!; kill -STOP $$"
DEAF = "trap '' TERM INT HUP; setsid sh -c 'sleep 1000; sleep 1000' & sleep 1000"
REGROUPED = "set -m; sleep 1000 & sh -c 'sleep 1000 & wait' & set +m; sleep 1000"

STORM = "f() { [ $1 -gt 9 ] && exec sleep 1000; f $(($1 + 1)) & f $(($1 + 1)) & }; f 1; wait"
"""A thousand processes: each forks two and exits."""

COMET = "f() { [ $1 -gt 30000 ] && exit; f $(($1 + 1)) & exit; }; f 1 & exec sleep 1000"
"""One process that forks and exits, and so changes its pid, for some seconds."""

WEED = "while [ $((n += 1)) -lt 30000 ]; do setsid sh -c 'sleep 1000 &'; done"
"""A process that starts daemons until it is killed."""

METEORS = (
    "f() { [ $1 -gt 5000 ] && exit; f $(($1 + 1)) & [ $(($1 % 50)) = 0 ] && sleep 1000 & exit; };"
    " for i in 1 2 3 4; do f 1 & done; sleep 1000"
)
"""Four processes that fork and exit as fast as they can, and leave some that stay."""

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
