"""What a study can measure. Nothing outside this package imports an engine's runtime or torch."""
