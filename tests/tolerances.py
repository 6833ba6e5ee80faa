"""How far numbers may lie apart, by what they compare."""

EXACT = 0.0
"""Same code, same order of operations."""

FORMULA = 1e-6
"""A value worked out by hand, in float32 or better."""

PARITY = 1e-5
"""Two implementations of the same model in float32."""
