"""Properties that every family in the registry has: a new one gets these tests for free."""
