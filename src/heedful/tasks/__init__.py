"""Every task of the course, by the name people know."""

from heedful.tasks.common import Pipeline as Pipeline
from heedful.tasks.common import Truncated as Truncated
from heedful.tasks.pipeline import TASKS as TASKS
from heedful.tasks.pipeline import pipeline as pipeline
