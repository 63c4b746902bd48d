"""One file for each subcommand of ``fracgpu``: parse the flags, read the cluster, print.

No command imports another. To add one, write ``main(argv) -> int`` in a file here and add a row to
`cli.main.COMMANDS`. Start with `cards.py`, a short one.
"""
