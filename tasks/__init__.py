"""What robots should do: tasks made of named observations, rewards, terminations and events."""
