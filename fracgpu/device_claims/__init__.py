"""Cards as devices of dynamic resource allocation, and pods' claims of them.

Start with `claim.py`, a ResourceClaim decoded; `claims.py` writes them, `preparation.py` checks one
before its containers start.
"""
