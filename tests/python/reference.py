"""How far training may be from that of plain torch."""

import torch
import zeroshard

# Both sides compute the same gradients and do the same update in another order of roundings. A difference is relative
# to the largest value of its tensor.
TOLERANCE = 1e-6


def difference(model, reference):
    """The largest difference of any parameter, relative to the largest value of its tensor."""
    largest = 0.0
    with zeroshard.gathered(model.parameters()):
        for (name, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
            assert ours.shape == theirs.shape and ours.requires_grad == theirs.requires_grad, name
            assert torch.isfinite(ours).all() and torch.isfinite(theirs).all(), name
            if ours.numel() == 0:
                continue
            error = (ours.cpu().double() - theirs.double()).abs().max() / theirs.double().abs().max().clamp_min(1e-12)
            largest = max(largest, error.item())
    return largest
