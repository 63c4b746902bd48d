"""Measurements of the product; nothing in here runs in production."""
