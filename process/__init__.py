"""Being a good process: clock, settings, logs, probes, TLS and an orderly stop."""
