"""Subcommands that ask something of a running cluster: a move, an empty card, another size.

Each writes what it asks for as an annotation, and leaves the doing to the roles. They are built as
those in `cli.commands`. Start with `move.py`.
"""
