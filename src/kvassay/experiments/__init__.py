"""Experiments: small, fixed, fully printed studies on synthetic arrays, each with an independent audit.

An experiment writes a fresh folder (arrays, rows, bytes, manifest) by running the product's own codecs. Its
audit reads only that folder and recomputes every figure with NumPy; it imports no torch, so the base install
can run it.
"""
