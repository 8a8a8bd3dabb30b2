"""The baselines that self-adaptive training is compared with, one file each, with their published defaults.

All of them use the same loop, network, optimiser and data. `ERM` is the base class: a method that only changes the
loss overrides `loss_of`.
"""
