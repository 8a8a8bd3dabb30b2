"""Signs that a network only looks robust because its gradients lead nowhere (Athalye et al., 2018).

Where gradients are masked, an attack that follows them fails and the robust accuracy it reports is too high. A sound
evaluation has three properties that can be measured:

    an attack without the network's gradients (Square, or images moved against another network) is weaker than PGD
    more steps do more harm than one
    a radius that lets every image become any other brings the accuracy to 0
"""


def masking_warnings(
    pgd: float,
    *,
    square: float | None = None,
    transfer: float | None = None,
    one_step: float | None = None,
    large_radius: float | None = None,
    tolerance: float = 0.01,
) -> list[str]:
    """What the accuracies under several attacks on the same images give away; None for one that was not measured.

    `pgd` has many steps and the radius in question, `one_step` the same radius, `large_radius` the same steps. A
    difference of up to `tolerance` is taken for chance.
    """
    found = []
    for name, accuracy in (("the Square attack", square), ("an attack made on another network", transfer)):
        if accuracy is not None and accuracy < pgd - tolerance:
            found.append(
                f"{accuracy:.1%} stay right under {name}, which needs no gradient of this network, and {pgd:.1%} under "
                "attacks by gradient: these may be masked, and robust accuracy is at most the lower figure"
            )
    if one_step is not None and one_step > tolerance and pgd >= one_step:
        found.append(
            f"{pgd:.1%} stay right under many steps, {one_step:.1%} under a single one: more steps do not help, so the "
            "gradients may be masked; try more restarts, the margin loss or AutoAttack"
        )
    if large_radius is not None and large_radius > tolerance:
        found.append(
            f"{large_radius:.1%} stay right under a radius that lets any image become any other: "
            "the attack fails, and its figures are too high"
        )
    return found
