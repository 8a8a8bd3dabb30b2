"""The methods that self-adaptive training is compared with, one file each, with their published defaults.

All of them run on the same loop, network, optimiser and data. `ERM` is the common ground: a method that only has
another loss says just that.
"""
