"""Fine-tuning on one's own file: from a trained model and a file to a checkpoint with a card.

request.py   what is asked for: the options of `heed finetune` and `heed eval`
data.py      what is in the file, and which examples are held out
outlook.py   what is reported before training: the time, and what the base model gives
run.py       the run in order: a head is attached and trained, or fitted to a few rows, and scored
result.py    what is saved: the folder, the checkpoint and its card

What is learnt is a `TrainableTask` (tasks/task.py). Which columns it reads is found out in tasks/examples.py.
"""

from heedful.core.lazy import lazy_names

# The request alone is light: `heed finetune --help` reads it and imports no torch.
__all__, __getattr__, __dir__ = lazy_names(__name__)
