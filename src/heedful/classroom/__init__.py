"""The teaching application: worked arithmetic, exercises, the course, experiments, figures, the studio.

Nothing below imports it.
"""
