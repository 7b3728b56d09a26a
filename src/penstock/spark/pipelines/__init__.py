"""The pipelines that come with penstock, a module each with its `PIPELINE`."""
