"""Learn from activations: probes, dictionaries of features, a catalogue of heads."""
