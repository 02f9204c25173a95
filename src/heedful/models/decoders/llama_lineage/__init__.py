"""Decoders that follow LLaMA: rotary positions, RMS norms, gated feed-forwards, often experts."""
