"""Fine-tuning on one's own file: from a trained model and a file to a checkpoint with a card.

inspecting.py  what kind of file it is, its columns and rows; rows that cannot be used, and why
guessing.py    which task it is for and which column is what, where that is obvious
tasks.py       what the tasks share: reading, holding out, a head, batches, scores
labelled.py    classify, similarity
located.py     tag, answer
written.py     translate, summarize, complete
training.py    the loop: steps, evaluations, the best weights
writing.py     where the checkpoint goes, and its card
run.py         all of it in order
"""

from heedful.runs.finetune.run import finetune
from heedful.runs.finetune.writing import Asked, Outcome

__all__ = ["Asked", "Outcome", "finetune"]
