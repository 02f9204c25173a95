"""Fine-tuning on one's own file: from a trained model and a file to a checkpoint with a card.

request.py   what is asked for: the options of `heed finetune` and `heed eval`
data.py      what is in the file, and which examples are held out
run.py       the run in order: the time is predicted, a head is trained, or fitted to a few rows, and scored
result.py    what is saved: the folder, the model and its card, the checkpoints of a long run

What is learnt is a `TrainableTask` (tasks/task.py). Which columns it reads is found out in tasks/examples.py.
"""

from heedful.core.lazy import lazy_names

# The request alone is light: `heed finetune --help` reads it and imports no torch.
__all__, __getattr__, __dir__ = lazy_names(__name__)
