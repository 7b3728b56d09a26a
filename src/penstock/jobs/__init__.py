"""Jobs: handlers, enqueueing, workers, schedules, and what is done about trouble."""
