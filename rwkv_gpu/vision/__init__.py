"""Images: projector files, preprocessing, and the towers that turn pixels into rows for a language model."""
