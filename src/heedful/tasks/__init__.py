"""Tasks by the names people know: `pipeline`, and what goes beyond it."""

from heedful.tasks.likelihood import infill as infill
from heedful.tasks.likelihood import log_probability as log_probability
from heedful.tasks.likelihood import rank as rank
from heedful.tasks.model_cache import forget_models as forget_models
from heedful.tasks.model_inputs import Truncated as Truncated
from heedful.tasks.open_domain import OpenDomain as OpenDomain
from heedful.tasks.pipeline import TASKS as TASKS
from heedful.tasks.pipeline import pipeline as pipeline
from heedful.tasks.prompting import FewShot as FewShot
from heedful.tasks.prompting import few_shot as few_shot
from heedful.tasks.search import Search as Search
from heedful.tasks.task import Pipeline as Pipeline
from heedful.tasks.task import Task as Task
from heedful.tasks.text_generation import Conversation as Conversation
