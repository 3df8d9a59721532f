"""The master: it forks workers, watches them and replaces them. It knows no schedules.

`master` is the loop, `workers` its table of children, `worker_child` a row of that table, and
`generation_spec` what is passed in from outside: how to make a worker.
"""
