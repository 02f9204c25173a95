"""E"""


def run(*a, **k): ...
