"""The one command: parses, prints, draws and sets exit codes."""
