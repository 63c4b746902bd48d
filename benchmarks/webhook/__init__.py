"""How fast the webhook answers (`benchmark`), and whether any review disturbs it (`fuzz`)."""
