"""What a container gets when it starts: device files, driver libraries, environment, MPS.

`spec_builder` builds it as a CDI spec; `adjustment` says it to the runtime by NRI, or `cdi` writes
it to a folder with the hook of `verify_hook`. Start with `spec_builder.py`.
"""
