"""Commands that set up, run and watch the service: init, configure, check, run, status.

The command ``psched-master`` is here, too.
"""
