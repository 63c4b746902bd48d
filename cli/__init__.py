"""The one command: parses, prints, draws and sets exit codes.

`main` finds the subcommand in `commands`; `cluster` reads what a command needs of a live cluster,
and `printers` show the answer. Start with `main.py`.
"""
