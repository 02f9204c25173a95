"""Fast code behind one function each, its definition beside it. A leaf: it imports nothing of the package."""
