"""Networks: backbones from inputs to features, and heads, chosen by the method, from features to outputs."""
