"""Wilson's score interval, which needs nothing but Python.  statistics.py says where it is from."""
import math

Z = 1.959963984540054  # the 97.5 % quantile of the normal distribution


def wilson(share, number):
    """Wilson's interval for a share seen in `number` independent answers."""
    square = Z * Z / number
    centre = (share + square / 2) / (1 + square)
    half = Z / (1 + square) * math.sqrt(share * (1 - share) / number + square / number / 4)
    return centre - half, centre + half
