"""Encoder-decoders: one stack reads, another writes."""
