#!lua
-- Writes records of the run history that belong to no settlement. ARGV: the values of
-- `write_new_records`. Returns the number of records that could not be written, and the reason for the
-- last of them.
return {write_new_records(1)}
