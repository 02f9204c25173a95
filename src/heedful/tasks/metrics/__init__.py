"""How good a model is.

perplexity.py   of language models, over a text of any length
scores.py       of labels, numbers, rankings and tags: accuracy, F1, correlations, nDCG, F1 of entities
generated.py    of texts: exact match and F1 of answers, ROUGE, BLEU
"""
