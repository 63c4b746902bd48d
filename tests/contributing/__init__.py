"""The worked examples of CONTRIBUTING.md, added to a copy of the repository."""
