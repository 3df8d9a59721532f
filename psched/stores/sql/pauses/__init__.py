"""The standing rules that pause types, in the table ``<table>_info``."""
