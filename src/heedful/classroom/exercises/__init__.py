"""Exercises for students, and their grading: numbers worked by hand, and code written in a file of stubs.

numbers.py, numbers_*.py: randomised variants of the worked examples, and how a filled sheet is marked;
sheets.py, sheets_*.py: a sheet as text, HTML or LaTeX, its answers read back from a file;
code_exercises.py, code_grading.py: stubs of functions (`write_stubs`), and their grading inside a model
(`grade_solution`); mutations_*.py: the mistakes that grading knows; sandbox*.py: the student's own process;
progress.py: what a student has done, which exercise is next and how many hints were taken, in one JSON file.

`heed exercise code …` is commands/exercise_code.py:exercise_code(names, list_all, hint, output, force, json),
and `heed grade FILE.py` is commands/grade_code.py:grade_code(path, names, json).
"""
