"""How far numbers may lie apart, by what they compare."""

EXACT = 0.0
"""Same code, same order of operations."""

FORMULA = 1e-6
"""A value worked out by hand, in float32 or better."""

PARITY = 1e-5
"""Two implementations of the same model in float32."""

BF16_LORA = 2**-9
"""One LoRA layer in bfloat16, outputs up to 0.5, sums in another order: one unit in the last place (measured: 0)."""

BF16_LOGP = 0.02
"""Mean |difference| of log-probabilities, vLLM in bfloat16 against transformers in float32, tiny (measured: 0.0033)."""

FLOAT16_GRADIENT = 0.01
"""Relative error of a tiny model's LoRA gradient in float16 against float32 (measured: 0.003)."""
