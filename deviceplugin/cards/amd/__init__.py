"""AMD's cards, read from the files of the kernel's driver ``amdgpu``, without a library.

`reader` reads each card's files (`sysfs`) in a thread of its own, because those of a card that is
being reset may block; `fdinfo` finds processes, `kfd` compute units. Start with `reader.py`.
"""
