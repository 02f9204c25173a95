"""Runs: what joins files, tokenizers, models, training and evaluation.

recipes.py    what to train and how, as values
settings.py   a recipe, a file, the environment and flags become one; where each value came from
prepare.py    from settings to a tokenizer, batches and a model
train.py      the run itself; `python -m heedful.runs.train` is `heed train`
folder.py     what a run leaves on disk
progress.py   what it shows meanwhile
rehearsal.py  one batch, measured: sizes, memory, time
launch.py     several processes on this machine
evaluate.py   a trained model, measured; evaluate_written.py: by what it writes
finetune/     a trained model, taught one's own file; `heed finetune`
cards.py      the card beside a checkpoint
ledger.py     results/*.json and the page made from them
verify.py     a row of the ledger, measured again
"""
