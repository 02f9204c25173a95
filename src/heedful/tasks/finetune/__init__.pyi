from heedful.tasks.finetune.request import FinetuneRequest as FinetuneRequest
from heedful.tasks.finetune.result import FinetuneResult as FinetuneResult
from heedful.tasks.finetune.run import finetune as finetune
