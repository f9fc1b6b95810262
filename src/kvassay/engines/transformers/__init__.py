"""The transformers engine: loading, decode-faithful scoring and cached decoding in this process."""
