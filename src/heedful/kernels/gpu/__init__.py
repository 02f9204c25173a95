"""Fast code for graphics cards, written in Triton."""
