"""Creation, update and deletion of objects, under the rules of their kind.

`defaults` sets defaults, `validation` rejects, `strategy` protects metadata, and `subresources` has
the verbs of their own, such as binding and eviction. Start with `registry.py`.
"""
