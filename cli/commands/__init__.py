"""One file for each subcommand of ``fracgpu``: it parses, asks and prints.

No command knows another. To add one, write ``main(argv) -> int`` in a file here and add a row to
`cli.main.COMMANDS`. Start with `cards.py`, a short one.
"""
