"""Topics at work: one publisher and two followers, each a process, over one file."""
