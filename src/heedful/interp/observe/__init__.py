"""Read what happens inside a model without changing it: attention, lenses, attribution, states."""
