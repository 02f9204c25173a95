"""Worked numbers: `heed explain`.

worked.py                          expressions that know how they were computed; lines; derivations
topics.py  topics_*.py             a function for each calculation, from plain numbers
from_values.py  example_files.py   calculations of a file, a mapping, an included example
from_model*.py  subject.py         calculations of a model on a text, checked against what it computed
render.py  formulas.py             text, Markdown, LaTeX and HTML
explain.py                         heedful.explain, which chooses
"""
