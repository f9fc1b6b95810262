"""Codecs: one file a method. Each packs codes for real and decodes from the packed bytes."""

from kvassay.formats.base import Calibration, Encoded, Quantizer
from kvassay.formats.registry import METHODS, quantizer

__all__ = ["METHODS", "Calibration", "Encoded", "Quantizer", "quantizer"]
