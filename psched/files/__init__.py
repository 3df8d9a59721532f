"""Schedules that are declared in files: planned, applied, exported, and taken over from crontabs.

Read in this order: `plan` compares what is wanted with what there is, and is pure; `applying` makes
it so; `document` reads files, `writing` writes them; `crontab` reads cron's, and `carrying` says in
psched's words what they say.

**Whose a schedule is** says its ``label``. What is wanted under one label never touches a schedule
of another, nor one that has none, unless somebody says that it is to be adopted.
"""
