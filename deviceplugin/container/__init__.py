"""What a container gets when it starts: device files, driver libraries, environment, MPS.

`spec_builder` puts it together as a CDI spec; `injection` hands it over by a CDI name, or by
`device_links` where `cri` tells that the runtime knows none. Start with `spec_builder.py`.
"""
