"""Codecs: one file a method. Each packs codes for real and decodes from the packed bytes."""

from kvassay.formats.base import Calibration, Encoded, Quantizer
from kvassay.formats.registry import quantizer

__all__ = ["Calibration", "Encoded", "Quantizer", "quantizer"]
