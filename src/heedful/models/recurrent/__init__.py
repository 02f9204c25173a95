"""Recurrent models: language models, and encoder-decoders with and without attention."""
