"""Fast code behind one function each, with its definition beside it. A leaf: it imports nothing of the package."""
