"""Runs: what joins files, tokenizers, models, training and evaluation.

recipes.py    recipes as values: what to train and how
settings.py   a recipe, a file, the environment and flags resolved into settings, with each value's origin
datasets.py   training and validation batches from files
prepare.py    a tokenizer, batches, a model and an objective from settings
train.py      the run itself; `python -m heedful.runs.train` is `heed train`
training_loop.py  the one loop around `fit`, for training and fine-tuning
folder.py     the folder of a run
progress.py   progress in a terminal or a log
rehearsal.py  one batch measured: sizes, memory, time
launch.py     several processes on this machine
evaluate.py   a model measured on files
requests.py   what `heed finetune` and `heed eval` are asked, with their options
finetune/     a trained model fine-tuned on a file; `heed finetune`
cards.py      the model card beside a checkpoint
curves.py     training curves in a terminal
ledger.py     results/*.json and the page made from them
verify.py     a row of the ledger measured again
"""
