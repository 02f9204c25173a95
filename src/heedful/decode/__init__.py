"""Text out of any model that can write: one loop, beams, speculation, constraints, and the fast paths."""
