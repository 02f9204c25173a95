"""Fine-tuning on one's own file: from a trained model and a file to a checkpoint with a card.

run.py               all of it in order: read, split, attach a head, train, score, save
file_examples.py     what is in the file, and which examples are held out
training_setup.py    the task bound to its model, the batches, the schedule
outlook.py           what is said before training: what the base gives, how long it will take
training.py          the training itself, and checkpoints of long runs
linear_head.py       few rows: a linear head on sentence vectors, frozen or tuned, cross-validated
pairs.py             texts of one class come near each other: how sentence vectors are tuned
finetune_result.py   the result: where the checkpoint goes, and its card

What is learnt is a `TrainableTask` (heedful/tasks); which columns it reads is found out in tasks/examples.py.
"""

from heedful.tasks.finetune.finetune_result import FinetuneResult
from heedful.tasks.finetune.run import finetune
from heedful.tasks.requests import FinetuneRequest

__all__ = ["FinetuneRequest", "FinetuneResult", "finetune"]
