"""Finds changes of the decision code that no test notices. Start with `__main__.py`."""
