"""What every part of the API server uses: resources, requests, errors, patches, storage.

`resources` lists what is served, `storage` keeps objects under one counter of revisions, and
`errors` words every error as the real server does. Start with `storage.py`.
"""
