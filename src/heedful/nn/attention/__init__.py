"""Attention and what surrounds it: the equation, its heads, its forms before and after."""
