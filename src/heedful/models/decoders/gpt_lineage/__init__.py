"""Decoders that follow GPT: learned positions or ALiBi, layer norms, plain feed-forwards."""
