"""Fine-tuning on one's own file: from a trained model and a file to a checkpoint with a card.

input_files.py       what kind of file it is, its columns and rows; rows that cannot be used, and why
column_roles.py      which task it is for and which column is what, where that is obvious
finetune_task.py     what the tasks share: reading, validation rows, a head, batches, scores
sequence_tasks.py    classify, similarity
token_tasks.py       tag, answer
generation_tasks.py  translate, summarize, complete
linear_head.py       few rows: a linear head on frozen sentence vectors
finetune_loop.py     the loop around `fit` with fine-tuning's rules for the best weights
finetune_result.py   the result: where the checkpoint goes, and its card
run.py               all of it in order
"""

from heedful.runs.finetune.finetune_result import FinetuneResult
from heedful.runs.finetune.run import finetune
from heedful.runs.requests import FinetuneRequest

__all__ = ["FinetuneRequest", "FinetuneResult", "finetune"]
