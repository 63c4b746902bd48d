"""What a container gets when it starts: device files, driver libraries, environment, MPS.

`spec_builder` builds it as a CDI spec; `injection` passes it to the runtime by a CDI name, or by
`device_links` where `cri` finds that the runtime reads no CDI specs. Start with `spec_builder.py`.
"""
