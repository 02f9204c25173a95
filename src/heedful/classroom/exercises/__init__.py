"""Exercises for students, and their grading: numbers to work out by hand, and functions to write.

number_*.py, sheets.py   variants of the worked examples with a student's own numbers, sheets, marks
code_*.py                stubs of functions, the mistakes that grading can name, models to put them into
sandbox*.py              the process that runs a student's code
student_record.py        the progress of a student, which exercise is next and how many hints were taken
classes.py               a class: students, assignments, marks of all submissions
other_graders.py         an assignment as a notebook for nbgrader, and as an autograder for Gradescope
"""
