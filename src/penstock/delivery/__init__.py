"""Live delivery to sockets, without any web framework: channels, batches, sessions, presence."""
