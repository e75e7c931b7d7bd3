"""Adapters to real text environments, one file per engine; each needs an optional extra."""
