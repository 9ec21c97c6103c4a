"""What flows: change batches from sources, messages to sinks."""
