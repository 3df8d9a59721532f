"""Captures what tasks print: a collector process for each worker reads their output.

High modules: `collection` (in the worker), `collector` (the process). They import `tail`,
`service_output` and `messages`.
"""
