"""Control: pipelines as things one can apply, pause, resume and stop."""
