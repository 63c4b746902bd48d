"""Builds the container image from Debian packages and locked wheels, without a daemon.

The image has three layers: Debian's Python with the libraries that it needs
(:mod:`tools.image.debian`), the packages of ``requirements-image.lock``, and FracGPU itself
(:mod:`tools.image.wheels`). Nothing of another architecture is run, so one machine builds all of
them. ``make image`` writes an OCI archive (:mod:`tools.image.oci`) and a bill of materials for
each architecture (:mod:`tools.image.sbom`). The same sources and packages make the same digest.
"""
