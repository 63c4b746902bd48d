"""The life of an object: created, changed, deleted, each under the rules of its kind.

`defaults` fills in, `validation` refuses, `strategy` guards metadata, and `subresources` are verbs
of their own, such as binding and eviction. Start with `registry.py`.
"""
