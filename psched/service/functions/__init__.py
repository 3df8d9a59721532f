"""Functions that are tasks: the app that registers them, and the connections that it pushes by."""
