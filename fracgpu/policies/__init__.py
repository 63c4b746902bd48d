"""Policies that judge where a pod goes by what the whole cluster loses by it."""
