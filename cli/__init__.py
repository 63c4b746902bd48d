"""The command `fracgpu`: arguments, output and exit codes.

`main` finds the subcommand in `commands`; `cluster` reads what a command needs from a live
cluster, and `printers` show the answer. Start with `main.py`.
"""
