"""The rules of sharing a card: pure values and decisions, no socket, clock, log or dice."""
