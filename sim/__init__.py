"""Physics: backends that step many worlds, robot models and scenes."""
