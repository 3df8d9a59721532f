"""How a change of the schedules wakes an idle worker of the same host before its next poll.

A program that has made a row due sends a hint, a datagram without any data, to the sockets of the
masters that serve its table (`hints`, `wake_socket`). A master tells one worker to look for due
rows, and another one if the first has no free slot left (`looks`). Each step may fail: workers poll
the table nevertheless.
"""
