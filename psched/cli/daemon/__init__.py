"""Commands that set up, run and watch the service: init, configure, check, run, status.

This package also contains the command ``psched-master``.
"""
