"""Schedules that are declared in files: ``psched apply`` and ``psched export``.

Reading order: `plan` compares declared schedules with existing ones, without reading the store;
`apply` reads the store for a plan, and carries the plan out; `document` reads files; `export`
writes files.

**Labels.** A schedule's ``label`` is its owner. Declarations with a label change only schedules
with that label, unless the caller asks to adopt other schedules.
"""
