"""Schedules that are declared in files: ``psched apply`` and ``psched export``.

Reading order: `plan` compares what is declared with what exists, and is pure; `apply` reads the
store for a plan, and carries the plan out; `document` reads files; `export` writes them; `preview`
computes the next runs that a plan shows.

**Labels.** A schedule's ``label`` names its owner. Declarations under one label never change a
schedule of another label, or one without a label, unless the caller asks to adopt it.
"""
