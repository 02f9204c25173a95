"""How good a model is.

perplexity.py   of language models, over a text of any length
logistic.py     logistic regression on vectors, by cross-validation
scores.py       accuracy, F1, Matthews, Pearson, Spearman
entities.py     F1 of whole entities in tagged text
generated.py    exact match and F1 of answers, ROUGE, BLEU
"""
