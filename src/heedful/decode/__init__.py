"""Text out of any model that can write: one loop over a stepper, beams, speculation, constraints, and the fast paths."""
