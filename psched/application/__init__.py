"""What users write: handlers, and the dispatch that maps types to handlers.

>>> from psched.application import Base, Dispatch as BaseDispatch
>>> class Hello(Base):
...     def run(self):
...         print("hello from", self.task)
>>> class Dispatch(BaseDispatch):
...     routes = {"hello": Hello}
"""

from psched.application.base import Base
from psched.application.dispatch import Dispatch

__all__ = ["Base", "Dispatch"]
