"""Functions to write: stubs, definitions, mistakes that can be named, and grading in a limited process."""
