"""The manifests of ``deploy/``, rendered from the Helm chart."""
