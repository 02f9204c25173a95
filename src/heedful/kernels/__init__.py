"""Fast code behind one function each, next to its definition. A leaf: it imports nothing of the package."""
