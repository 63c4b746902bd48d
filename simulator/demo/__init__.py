"""The demo: every role as a real process around a simulated cluster, watched and judged."""
