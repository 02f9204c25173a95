"""Every task of the course, by the name people know."""

from heedful.tasks.pipeline import pipeline as pipeline
