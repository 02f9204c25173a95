"""Fast code for processors, compiled by Numba when it is first used."""
