"""Change what happens inside a model, and measure what follows: ablation, patching, steering."""
