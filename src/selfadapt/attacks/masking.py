"""Signs of gradient masking: a network that looks robust only because its gradients are uninformative.

Gradient-based attacks fail against masked gradients, and report a robust accuracy that is too high (Athalye et al.,
2018). A sound evaluation has three measurable properties:

    attacks without gradients of the network (Square, or transfer from another network) are weaker than PGD
    many steps are stronger than one
    with a radius that turns any image into any other, the accuracy is 0
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
    """Return a warning for each sign of masking in the accuracies under several attacks on the same images.

    `pgd` is the accuracy under many steps; `one_step` has the same radius, `large_radius` the same number of steps.
    None means not measured. Differences of up to `tolerance` are attributed to chance.
    """
    found = []
    for name, accuracy in (("the Square attack", square), ("a transfer attack", transfer)):
        if accuracy is not None and accuracy < pgd - tolerance:
            found.append(
                f"accuracy is {accuracy:.1%} under {name}, which needs no gradients of this network, and {pgd:.1%} "
                "under gradient-based attacks: gradients may be masked, and robust accuracy is at most the lower figure"
            )
    if one_step is not None and one_step > tolerance and pgd >= one_step:
        found.append(
            f"accuracy is {pgd:.1%} under many steps and {one_step:.1%} under one: more steps do not help, so "
            "gradients may be masked; try more restarts, the margin loss or AutoAttack"
        )
    if large_radius is not None and large_radius > tolerance:
        found.append(
            f"accuracy is {large_radius:.1%} under a radius that turns any image into any other: "
            "the attack fails, and its figures are too high"
        )
    return found
