"""Bytes, peaks and seconds of whole caches in decoding, one fresh process an arm."""
