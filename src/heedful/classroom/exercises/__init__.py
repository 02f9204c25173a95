"""Exercises for students, and their grading: numbers to work out by hand, and functions to write.

numbers/    variants of the worked examples with a student's own numbers, sheets to print or fill in, marks
code/       stubs of functions, the mistakes that grading can name, and the process that runs a student's code
student_record.py   the progress of a student, which exercise is next and how many hints were taken
"""
