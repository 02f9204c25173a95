"""Worked numbers: `heed explain`.

worked.py                    expressions that know how they were computed; lines; derivations
topics.py  topics_*.py       a function for each calculation, from plain numbers
explain.py                   heedful.explain: of a file, a mapping, an included example or a model
from_model*.py  subject.py   calculations of a model on a text, checked against what it computed
render.py                    text, Markdown, LaTeX and HTML
"""
